"""How StreamDiffusionV2 sends, to compare with: a batch of all steps a hop, in six messages.

All six are sent at once, and sending does not block.  The first says what comes; the receiver's
thread then receives the other five, one after the other, and computes nothing meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

import torch
from torch import distributed

from physis_core.runtime.links.p2p import FOR_EVER, PeerGroup, Waiter, failed
from physis_core.runtime.links.protocol import Message
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout, aligned
from physis_core.runtime.telemetry import EdgeMeter

_PIECES = 6


class BatchConnection:
    """One end of a process group of two, with buffers for whole batches."""

    def __init__(self, rendezvous: str, end: int, layout: PacketLayout, codec: HeaderCodec,
                 slots: int, rows: int) -> None:
        """Join the other end and warm the edge; ``rows``: chunks of the largest batch.

        Raises:
            WorkerLost: the other end did not come.
            OSError: the file where they meet is no longer there.
        """
        self.codec = codec
        self.rows = rows
        self.slots = slots
        self.payload_bytes = layout.nbytes
        self._first = aligned(8)
        heads = self._first + rows * codec.nbytes
        buffers = [torch.zeros(heads + rows * layout.nbytes, dtype=torch.uint8)
                   for _ in range(slots)]
        self.memory = [buffer.numpy() for buffer in buffers]
        self.views = [[layout.views(buffer, heads + row * layout.nbytes) for row in range(rows)]
                      for buffer in buffers]
        self._pieces = [(buffer[:heads], *buffer[heads:].tensor_split(_PIECES - 1))
                        for buffer in buffers]
        self._group = PeerGroup('gloo', rendezvous, end)
        with self._group.answering():
            self.first(0, self._group.timeout)

    def header_offset(self, row: int) -> int:
        """Where the header of a row begins."""
        return self._first + row * self.codec.nbytes

    def first(self, slot: int, timeout: timedelta) -> None:
        """Transfer the first message of a batch; returns when it is done."""
        self._group.transfer(self._pieces[slot][0]).wait(timeout)

    def others(self, slot: int, timeout: timedelta) -> None:
        """Transfer the others."""
        for piece in self._pieces[slot][1:]:
            self._group.transfer(piece).wait(timeout)

    def begin(self, slot: int) -> Callable[[timedelta], None]:
        """Begin to transfer all messages of a batch; returns what waits for their end."""
        try:
            works = [self._group.transfer(piece) for piece in self._pieces[slot]]
        except RuntimeError as error:
            return partial(failed, error)
        return partial(_wait_for, works)


def _wait_for(works: list[distributed.Work], timeout: timedelta) -> None:
    for work in works:
        work.wait(timeout)


class PiecesOutlet:
    """See :class:`~physis_core.runtime.links.protocol.Outlet`."""

    def __init__(self, connection: BatchConnection, meter: EdgeMeter,
                 wake_self: Callable[[], None]) -> None:
        self._connection = connection
        self._meter = meter
        self._wake_self = wake_self
        self._free = deque(range(connection.slots))  # appended to by the waiter alone
        self._filling: int | None = None
        self._rows = 0
        self._refused = False
        self._waiter = Waiter(self._sent)

    def try_send(self, state: ChunkState, tensors: Mapping[str, torch.Tensor]) -> bool:
        """See :class:`~physis_core.runtime.links.protocol.Outlet`."""
        link = self._connection
        if self._filling is None:
            self._refused = True  # before looking: a slot that comes free after it wakes us
            if not self._free:
                self._meter.refused()
                return False
            self._refused = False
            self._filling, self._rows = self._free.popleft(), 0
        state.sent_ns = time.monotonic_ns()
        link.codec.write(link.memory[self._filling], link.header_offset(self._rows), state)
        for name, tensor in tensors.items():
            link.views[self._filling][self._rows][name].copy_(tensor)
        self._rows += 1
        self._meter.sent(link.payload_bytes)
        if self._rows == link.rows:
            self.announce()
        return True

    def announce(self) -> None:
        """See :class:`~physis_core.runtime.links.protocol.Outlet`."""
        slot = self._filling
        if slot is not None:
            self._filling = None
            self._connection.memory[slot][0] = self._rows
            self._waiter.add(slot, self._connection.begin(slot))

    def _sent(self, slot: int) -> None:
        self._free.append(slot)
        if self._refused:
            self._wake_self()


class PiecesInlet:
    """See :class:`~physis_core.runtime.links.protocol.Inlet`."""

    def __init__(self, connection: BatchConnection, meter: EdgeMeter,
                 wake_self: Callable[[], None]) -> None:
        self._connection = connection
        self._meter = meter
        self._wake_self = wake_self
        self._free = deque(range(connection.slots))
        self._used = [0] * connection.slots  # rows that are not released yet
        self._rows: deque[tuple[int, int]] = deque()  # slot and row, received and not pulled
        self._posted = False
        self._begun: deque[int] = deque()  # appended to by the waiter alone
        self._waiter = Waiter(self._first_came)
        self._post()

    def pull(self) -> Message | None:
        """See :class:`~physis_core.runtime.links.protocol.Inlet`; blocks for a batch under way."""
        link = self._connection
        if not self._rows and self._begun:
            slot = self._begun.popleft()
            try:
                link.others(slot, FOR_EVER)
            except RuntimeError:  # the peer is gone: whoever watches the processes says so
                return None
            self._posted = False
            self._used[slot] = int(link.memory[slot][0])
            self._rows.extend((slot, row) for row in range(self._used[slot]))
            self._post()
        if not self._rows:
            return None
        slot, row = self._rows.popleft()
        state = link.codec.read(link.memory[slot], link.header_offset(row))
        self._meter.taken(state.sent_ns)
        return Message(state, link.views[slot][row], slot)

    def release(self, slot: int) -> None:
        """See :class:`~physis_core.runtime.links.protocol.Inlet`."""
        self._used[slot] -= 1
        if not self._used[slot]:
            self._free.append(slot)
            self._post()

    def _post(self) -> None:
        """Receive the first message of the next batch: one at a time, so that none mix."""
        if self._free and not self._posted:
            self._posted = True
            slot = self._free.popleft()
            self._waiter.add(slot, partial(self._connection.first, slot))

    def _first_came(self, slot: int) -> None:
        self._begun.append(slot)
        self._wake_self()
