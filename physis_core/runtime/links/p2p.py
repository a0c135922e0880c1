"""A link over `torch.distributed`: gloo between CPUs, NCCL between GPUs, the same code.

Each link is a process group of its two ends, so that a peer that dies breaks its own links and no
others.  The receiver posts all its receives in advance, one fixed-shape message each: header,
hidden state, latent and condition in one buffer.  A send ends only when a receive was posted for
it, which bounds what is under way.  Waiting for the network happens on a thread of each end; the
device's thread never blocks.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed

from physis_core.errors import InputError, WorkerLost
from physis_core.runtime.links.protocol import Message
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout
from physis_core.runtime.telemetry import EdgeMeter
from physis_core.shared_block import address_of, open_address

SENDER, RECEIVER = 0, 1
_JOIN_TIMEOUT_S = 5.0
_DEVICE_OF = {'gloo': 'cpu', 'nccl': 'cuda'}
FOR_EVER = timedelta(days=365)


class Rendezvous:
    """An empty file without a name, where the two ends of a link find each other."""

    def __init__(self) -> None:
        self._descriptor: int | None = os.memfd_create('physis', os.MFD_CLOEXEC)
        self.address = address_of(self._descriptor)

    def close(self) -> None:
        """Let no more ends come."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class PeerGroup:
    """One end of a process group of two."""

    def __init__(self, transport: str, rendezvous: str, end: int) -> None:
        """Join the other end, which must do the same at the same time.

        Args:
            transport: ``gloo`` or ``nccl``.
            rendezvous: address of an empty file that both ends see.
            end: :data:`SENDER` or :data:`RECEIVER`.

        Raises:
            WorkerLost: the other end did not come.
            InputError: this transport is not available here.
            OSError: the file is no longer there.
        """
        self._transport = transport
        self._end = end
        self._meeting = os.fdopen(open_address(rendezvous), 'rb+', buffering=0)
        with self.answering():
            self._group = _join(transport, self._meeting.fileno(), end)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Expect the other end to do its part in time.

        Raises:
            WorkerLost: it did not.
        """
        try:
            yield
        except RuntimeError as error:
            raise WorkerLost(f'the other end of a {self._transport} link did not answer within '
                             f'{_JOIN_TIMEOUT_S:g} s: {str(error).splitlines()[0]}') from error

    @property
    def timeout(self) -> timedelta:
        """How long to wait for an end that is just being opened."""
        return timedelta(seconds=_JOIN_TIMEOUT_S)

    def transfer(self, tensor: torch.Tensor) -> distributed.Work:
        """Begin to send, or to receive, a tensor."""
        if self._end == SENDER:
            return self._group.send([tensor], RECEIVER, 0)
        return self._group.recv([tensor], SENDER, 0)


class Connection:
    """One end of a link, and its fixed-shape buffers."""

    def __init__(self, transport: str, rendezvous: str, end: int, layout: PacketLayout,
                 codec: HeaderCodec, slots: int) -> None:
        """Join the other end and warm the edge; see :class:`PeerGroup`.

        Args:
            transport: ``gloo`` or ``nccl``.
            rendezvous: where the ends meet.
            end: :data:`SENDER` or :data:`RECEIVER`.
            layout: the tensors of a message.
            codec: of its header.
            slots: messages that may be under way.
        """
        self.codec = codec
        self.slots = slots
        self.payload_bytes = layout.nbytes
        self.header = torch.zeros(codec.nbytes, dtype=torch.uint8)
        self._group = PeerGroup(transport, rendezvous, end)
        with self._group.answering():
            self.buffers = [
                torch.zeros(codec.nbytes + layout.nbytes, dtype=torch.uint8,
                            device=_DEVICE_OF[transport]) for _ in range(slots)]
            self.views = [layout.views(buffer, codec.nbytes) for buffer in self.buffers]
            self._aside = torch.cuda.Stream() if self.buffers[0].is_cuda else None
            self.transfer(0)(self._group.timeout)

    def transfer(self, slot: int) -> Callable[[timedelta], None]:
        """Begin to send, or to receive, the buffer of a slot; returns what waits for its end.

        Where the peer is gone it is the wait that fails: a device outlives its links.
        """
        try:
            return partial(self._wait, self._group.transfer(self.buffers[slot]))
        except RuntimeError as error:
            return partial(failed, error)

    def _wait(self, work: distributed.Work, timeout: timedelta) -> None:
        """Until all of it is there.

        NCCL's ``wait`` has the current stream wait, not the caller: a stream aside does, so that no
        computation stands behind a message that is still to come, and the caller sleeps until that
        has got there.
        """
        if self._aside is None:
            work.wait(timeout)
            return
        arrived = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._aside):
            work.wait()
            arrived.record()
        arrived.synchronize()


def failed(error: RuntimeError, timeout: timedelta) -> None:
    """The wait for a transfer that could not begin."""
    raise error


def _join(transport: str, meeting: int, end: int) -> Any:
    """The process group; `torch.distributed` types its backends as something else.

    ``meeting`` is the descriptor of the file, which the store opens again and again.
    """
    store = distributed.FileStore(f'/proc/self/fd/{meeting}', 2)
    timeout = timedelta(seconds=_JOIN_TIMEOUT_S)
    store.set_timeout(timeout)
    if transport == 'nccl':
        if not distributed.is_nccl_available():
            raise InputError('link `nccl` needs a PyTorch that is built with it; use `gloo` '
                             'between CPUs')
        return distributed.ProcessGroupNCCL(store, end, 2, distributed.ProcessGroupNCCL.Options())
    return distributed.ProcessGroupGloo(store, end, 2, timeout)


class Waiter:
    """A thread that waits for transfers, in the order they were begun."""

    def __init__(self, finished: Callable[[int], None]) -> None:
        self._finished = finished
        self._begun: queue.SimpleQueue[tuple[int, Callable[[timedelta], None]]] = (
            queue.SimpleQueue())
        threading.Thread(target=self._wait, name='physis-link', daemon=True).start()

    def add(self, slot: int, wait: Callable[[timedelta], None]) -> None:
        """Call ``wait`` when those before have ended, then report the slot."""
        self._begun.put((slot, wait))

    def _wait(self) -> None:
        while True:
            slot, wait = self._begun.get()
            try:
                wait(FOR_EVER)
            except RuntimeError:  # the peer is gone: whoever watches the processes says so
                return
            self._finished(slot)


class P2pOutlet:
    """See :class:`~physis_core.runtime.links.protocol.Outlet`."""

    def __init__(self, connection: Connection, meter: EdgeMeter, wake_self: Callable[[], None]
                 ) -> None:
        self._connection = connection
        self._meter = meter
        self._wake_self = wake_self
        self._free = deque(range(connection.slots))  # appended to by the waiter alone
        self._refused = False
        self._waiter = Waiter(self._sent)

    def try_send(self, state: ChunkState, tensors: Mapping[str, torch.Tensor]) -> bool:
        """See :class:`~physis_core.runtime.links.protocol.Outlet`."""
        link = self._connection
        self._refused = True  # before looking: a slot that comes free after it wakes us
        if not self._free:
            self._meter.refused()
            return False
        self._refused = False
        slot = self._free.popleft()
        state.sent_ns = time.monotonic_ns()
        link.codec.write(link.header.numpy(), 0, state)
        link.buffers[slot][:link.codec.nbytes].copy_(link.header)
        for name, tensor in tensors.items():
            link.views[slot][name].copy_(tensor)
        self._waiter.add(slot, link.transfer(slot))
        self._meter.sent(link.payload_bytes)
        return True

    def announce(self) -> None:
        """See :class:`~physis_core.runtime.links.protocol.Outlet`; arrival itself wakes."""

    def _sent(self, slot: int) -> None:
        self._free.append(slot)
        if self._refused:
            self._wake_self()


class P2pInlet:
    """See :class:`~physis_core.runtime.links.protocol.Inlet`."""

    def __init__(self, connection: Connection, meter: EdgeMeter, wake_self: Callable[[], None]
                 ) -> None:
        self._connection = connection
        self._meter = meter
        self._wake_self = wake_self
        self._arrived: deque[int] = deque()  # appended to by the waiter alone
        self._waiter = Waiter(self._received)
        for slot in range(connection.slots):
            self._waiter.add(slot, connection.transfer(slot))

    def pull(self) -> Message | None:
        """See :class:`~physis_core.runtime.links.protocol.Inlet`."""
        if not self._arrived:
            return None
        link = self._connection
        slot = self._arrived.popleft()
        header = link.buffers[slot][:link.codec.nbytes].cpu().numpy()
        state = link.codec.read(header, 0)
        self._meter.taken(state.sent_ns)
        return Message(state, link.views[slot], slot)

    def release(self, slot: int) -> None:
        """See :class:`~physis_core.runtime.links.protocol.Inlet`."""
        self._waiter.add(slot, self._connection.transfer(slot))

    def _received(self, slot: int) -> None:
        self._arrived.append(slot)
        self._wake_self()
