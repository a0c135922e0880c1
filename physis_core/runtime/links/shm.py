"""A link inside one host: fixed-shape slots in shared memory, one writer, one reader.

The sender copies a message into a free slot; the receiver reads it in place and gives the slot
back when it has used it.  Slots may come back in any order, messages arrive in the order sent.
Both sides keep only counters that they alone write, so nobody ever waits for a lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout, aligned
from physis_core.shared_block import SharedBlock

_COUNTERS = 8
_SENT, _BYTES, _FULL = range(3)


@dataclass(frozen=True)
class Message:
    """What the receiver sees: tensors are views of the slot until :meth:`Inlet.release`."""

    state: ChunkState
    tensors: Mapping[str, torch.Tensor]
    slot: int


class _Ring:
    """The memory both ends see: counters, slot states, the order of slots, the slots."""

    def __init__(self, block: SharedBlock, layout: PacketLayout, codec: HeaderCodec,
                 slots: int) -> None:
        self.block = block
        self.codec = codec
        self.slots = slots
        words = np.frombuffer(block.memory, np.int64, _COUNTERS + 2 * slots)
        self.counters = words[:_COUNTERS]
        self.busy = words[_COUNTERS:_COUNTERS + slots]
        self.order = words[_COUNTERS + slots:]
        start = aligned(words.nbytes)
        stride = codec.nbytes + layout.nbytes
        self.offsets = [start + index * stride for index in range(slots)]
        self.views = [layout.views(block.memory, offset + codec.nbytes) if layout.tensors else {}
                      for offset in self.offsets]
        self.payload_bytes = layout.nbytes

    @staticmethod
    def size_bytes(layout: PacketLayout, codec: HeaderCodec, slots: int) -> int:
        return (aligned(8 * (_COUNTERS + 2 * slots))
                + slots * (codec.nbytes + layout.nbytes))


class ShmOutlet:
    """The sending end.  Owned by one thread of one process."""

    def __init__(self, ring: _Ring, wake: Callable[[], None]) -> None:
        self._ring = ring
        self._wake = wake

    def try_send(self, state: ChunkState, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Copy a message into a free slot and wake the receiver; False where none is free."""
        ring = self._ring
        slot = int(ring.busy.argmin())
        if ring.busy[slot]:
            ring.counters[_FULL] += 1
            return False
        state.sent_ns = time.monotonic_ns()
        ring.codec.write(ring.block.memory, ring.offsets[slot], state)
        views = ring.views[slot]
        for name, tensor in tensors.items():
            views[name].copy_(tensor)
        ring.busy[slot] = 1
        sent = int(ring.counters[_SENT])
        ring.order[sent % ring.slots] = slot
        ring.counters[_BYTES] += ring.payload_bytes
        ring.counters[_SENT] = sent + 1
        self._wake()
        return True


class ShmInlet:
    """The receiving end.  Owned by one thread of one process."""

    def __init__(self, ring: _Ring, wake_sender: Callable[[], None]) -> None:
        self._ring = ring
        self._wake_sender = wake_sender
        self._taken = 0

    def pull(self) -> Message | None:
        """The next message, in the order sent; None: there is none."""
        ring = self._ring
        if self._taken == ring.counters[_SENT]:
            return None
        slot = int(ring.order[self._taken % ring.slots])
        self._taken += 1
        state = ring.codec.read(ring.block.memory, ring.offsets[slot])
        return Message(state, ring.views[slot], slot)

    def release(self, slot: int) -> None:
        """Give a slot back.  Its tensors may be overwritten from now on."""
        self._ring.busy[slot] = 0
        if self._ring.counters[_FULL]:
            self._wake_sender()


def create_ring(layout: PacketLayout, codec: HeaderCodec, slots: int) -> SharedBlock:
    """Memory for a link; its owner keeps the block for as long as the link lives."""
    return SharedBlock.create(_Ring.size_bytes(layout, codec, slots))


def open_outlet(block: SharedBlock, layout: PacketLayout, codec: HeaderCodec, slots: int,
                wake: Callable[[], None]) -> ShmOutlet:
    """The sending end of a ring; ``wake`` tells the receiver that there is news."""
    return ShmOutlet(_Ring(block, layout, codec, slots), wake)


def open_inlet(block: SharedBlock, layout: PacketLayout, codec: HeaderCodec, slots: int,
               wake_sender: Callable[[], None]) -> ShmInlet:
    """The receiving end of a ring; ``wake_sender`` tells the sender that a slot is free."""
    return ShmInlet(_Ring(block, layout, codec, slots), wake_sender)
