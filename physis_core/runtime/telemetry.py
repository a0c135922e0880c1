"""What devices and links did, in shared memory that anyone may read and nobody waits for.

One chunk id goes through everything: (stream, epoch, chunk).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import numpy as np

from physis_core.runtime.packets import aligned
from physis_core.shared_block import SharedBlock

STAGE_RECORD = np.dtype([
    ('stream', '<i4'), ('epoch', '<i4'), ('chunk', '<i8'), ('step', '<i2'), ('block', '<i2'),
    ('batch', '<i2'), ('streams', '<i2'), ('arrived_ns', '<i8'), ('start_ns', '<i8'),
    ('end_ns', '<i8')])
"""One task: who, where, with how many others, when it arrived, started and ended (steady ns)."""

CAPACITY = 8192
_Log = TypeVar('_Log', bound='RecordLog')
_PACKED = {'<i2': 'h', '<i4': 'i', '<i8': 'q'}


class RecordLog:
    """The last records of one writer; the names and types of their fields are ``RECORD``'s."""

    RECORD: ClassVar[np.dtype[np.void]]

    def __init__(self, block: SharedBlock) -> None:
        self.block = block
        self._count = memoryview(block.memory)[:8].cast('q')
        self._first = aligned(8)
        self._records = np.frombuffer(block.memory, self.RECORD, CAPACITY, self._first)
        self._packed = struct.Struct(
            '<' + ''.join(_PACKED[field[1]] for field in self.RECORD.descr))

    @classmethod
    def create(cls: type[_Log]) -> _Log:
        """An empty log."""
        return cls(SharedBlock.create(aligned(8) + CAPACITY * cls.RECORD.itemsize))

    def append(self, *fields: int) -> None:
        """Add one record, its fields in the order of ``RECORD``."""
        self.extend((fields,))

    def extend(self, records: Sequence[Sequence[int]]) -> None:
        """Add records."""
        count, packed = self._count[0], self._packed
        for fields in records:
            packed.pack_into(self.block.memory, self._first + count % CAPACITY * packed.size,
                             *fields)
            count += 1
        self._count[0] = count

    @property
    def total(self) -> int:
        """Records since the start."""
        return self._count[0]

    def latest(self, most: int = CAPACITY) -> np.ndarray:
        """A copy of the latest records, oldest first."""
        total = self.total
        first = max(0, total - min(most, CAPACITY - 64))  # keep clear of the place being written
        return self._records[np.arange(first, total) % CAPACITY].copy()


class StageLog(RecordLog):
    """The last tasks of one device.  Written by the device alone."""

    RECORD = STAGE_RECORD


class EdgeMeter:
    """What one link carried.  Each word is written by one end alone."""

    _WORDS = 5
    _SENT, _BYTES, _REFUSED, _TAKEN, _WAITED_NS = range(_WORDS)

    def __init__(self, block: SharedBlock) -> None:
        self.block = block
        self._words = memoryview(block.memory)[:8 * self._WORDS].cast('q')

    @classmethod
    def create(cls) -> EdgeMeter:
        """A meter at zero."""
        return cls(SharedBlock.create(8 * cls._WORDS))

    def sent(self, payload_bytes: int) -> None:
        """The sender sent a message."""
        self._words[self._SENT] += 1
        self._words[self._BYTES] += payload_bytes

    def refused(self) -> None:
        """The sender found no place."""
        self._words[self._REFUSED] += 1

    def taken(self, sent_ns: int) -> None:
        """The receiver took a message that was sent at ``sent_ns``."""
        self._words[self._TAKEN] += 1
        self._words[self._WAITED_NS] += time.monotonic_ns() - sent_ns

    @property
    def messages(self) -> int:
        """Messages sent."""
        return self._words[self._SENT]

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors sent."""
        return self._words[self._BYTES]

    @property
    def refusals(self) -> int:
        """How often the sender found the link full."""
        return self._words[self._REFUSED]

    @property
    def mean_wait_ns(self) -> float:
        """From being sent to being taken [ns]; 0 where nothing was taken."""
        taken = self._words[self._TAKEN]
        return self._words[self._WAITED_NS] / taken if taken else 0.0
