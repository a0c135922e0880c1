"""A link inside one host: fixed-shape slots in shared memory, one writer, one reader.

The sender copies a message into a free slot; the receiver reads it in place and gives the slot
back when it has used it.  Slots may come back in any order, messages arrive in the order sent.
Both sides keep only counters that they alone write, so nobody ever waits for a lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import torch

from physis_core.runtime.links.protocol import Message
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout, aligned
from physis_core.runtime.telemetry import EdgeMeter
from physis_core.shared_block import SharedBlock

_COUNTERS = 2
_SENT, _REFUSED = range(_COUNTERS)


class Ring:
    """The memory both ends see: counters, slot states, the order of slots, the slots."""

    def __init__(self, block: SharedBlock, layout: PacketLayout, codec: HeaderCodec,
                 slots: int) -> None:
        self.memory = block.memory
        self.codec = codec
        self.slots = slots
        words = memoryview(block.memory)[:8 * (_COUNTERS + 2 * slots)].cast('q')
        self.counters = words[:_COUNTERS]
        self.busy = words[_COUNTERS:_COUNTERS + slots]
        self.order = words[_COUNTERS + slots:]
        start = aligned(words.nbytes)
        stride = codec.nbytes + layout.nbytes
        self.offsets = [start + index * stride for index in range(slots)]
        flat = torch.frombuffer(block.memory, dtype=torch.uint8)
        self.views = [layout.views(flat, offset + codec.nbytes) for offset in self.offsets]
        self.payload_bytes = layout.nbytes

    @staticmethod
    def size_bytes(layout: PacketLayout, codec: HeaderCodec, slots: int) -> int:
        return (aligned(8 * (_COUNTERS + 2 * slots))
                + slots * (codec.nbytes + layout.nbytes))


class ShmOutlet:
    """See :class:`~physis_core.runtime.links.protocol.Outlet`."""

    def __init__(self, ring: Ring, meter: EdgeMeter, wake: Callable[[], None]) -> None:
        self._ring = ring
        self._meter = meter
        self._wake = wake
        self._next = 0
        self._sent = 0  # with those that are not announced yet

    def try_send(self, state: ChunkState, tensors: Mapping[str, torch.Tensor]) -> bool:
        """See :class:`~physis_core.runtime.links.protocol.Outlet`."""
        ring = self._ring
        slot = self._free_slot()
        if slot is None:
            ring.counters[_REFUSED] += 1
            self._meter.refused()
            slot = self._free_slot()  # it may have come free before the receiver saw that word
            if slot is None:
                return False
        state.sent_ns = time.monotonic_ns()
        ring.codec.write(ring.memory, ring.offsets[slot], state)
        views = ring.views[slot]
        for name, tensor in tensors.items():
            views[name].copy_(tensor)
        ring.busy[slot] = 1
        ring.order[self._sent % ring.slots] = slot
        self._sent += 1
        self._meter.sent(ring.payload_bytes)
        return True

    def announce(self) -> None:
        """See :class:`~physis_core.runtime.links.protocol.Outlet`."""
        self._ring.counters[_SENT] = self._sent
        self._wake()

    def _free_slot(self) -> int | None:
        """A free slot, looked for from the one after the last: that is free first."""
        busy, slots, first = self._ring.busy, self._ring.slots, self._next
        for ahead in range(slots):
            slot = (first + ahead) % slots
            if not busy[slot]:
                self._next = (slot + 1) % slots
                return slot
        return None


class ShmInlet:
    """See :class:`~physis_core.runtime.links.protocol.Inlet`."""

    def __init__(self, ring: Ring, meter: EdgeMeter, wake_sender: Callable[[], None]) -> None:
        self._ring = ring
        self._meter = meter
        self._wake_sender = wake_sender
        self._taken = 0

    def pull(self) -> Message | None:
        """See :class:`~physis_core.runtime.links.protocol.Inlet`."""
        ring = self._ring
        if self._taken == ring.counters[_SENT]:
            return None
        slot = ring.order[self._taken % ring.slots]
        self._taken += 1
        state = ring.codec.read(ring.memory, ring.offsets[slot])
        self._meter.taken(state.sent_ns)
        return Message(state, ring.views[slot], slot)

    @cached_property
    def _arrays(self) -> list[dict[str, np.ndarray]]:
        return [{name: view.numpy() for name, view in views.items()} for views in self._ring.views]

    def copies(self, slot: int) -> dict[str, np.ndarray]:
        """The tensors of a message as arrays of the caller's own."""
        return {name: array.copy() for name, array in self._arrays[slot].items()}

    def release(self, slot: int) -> None:
        """See :class:`~physis_core.runtime.links.protocol.Inlet`."""
        self._ring.busy[slot] = 0
        if self._ring.counters[_REFUSED]:
            self._wake_sender()


def create_ring(layout: PacketLayout, codec: HeaderCodec, slots: int) -> SharedBlock:
    """Memory for a link; its owner keeps the block for as long as the link lives."""
    return SharedBlock.create(Ring.size_bytes(layout, codec, slots))
