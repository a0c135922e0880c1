"""What each device did, in rings of shared memory that anyone may read and nobody waits for."""

from __future__ import annotations

import numpy as np

from physis_core.runtime.packets import aligned
from physis_core.shared_block import SharedBlock

STAGE_RECORD = np.dtype([
    ('stream', '<i4'), ('epoch', '<i4'), ('chunk', '<i8'), ('step', '<i2'), ('block', '<i2'),
    ('batch', '<i2'), ('streams', '<i2'), ('arrived_ns', '<i8'), ('start_ns', '<i8'),
    ('end_ns', '<i8')])
"""One task: who, where, with how many others, when it arrived, started and ended (steady ns)."""

CAPACITY = 8192


class StageLog:
    """The last tasks of one device.  Written by the device alone."""

    def __init__(self, block: SharedBlock) -> None:
        self.block = block
        self._count = np.frombuffer(block.memory, np.int64, 1)
        self._records = np.frombuffer(block.memory, STAGE_RECORD, CAPACITY, aligned(8))

    @classmethod
    def create(cls) -> StageLog:
        """An empty log."""
        return cls(SharedBlock.create(aligned(8) + CAPACITY * STAGE_RECORD.itemsize))

    def append(self, *fields: int) -> None:
        """Add one record, in the order of :data:`STAGE_RECORD`."""
        count = int(self._count[0])
        self._records[count % CAPACITY] = fields
        self._count[0] = count + 1

    @property
    def total(self) -> int:
        """Tasks since the start."""
        return int(self._count[0])

    def latest(self, most: int = CAPACITY) -> np.ndarray:
        """A copy of the latest records, oldest first."""
        total = self.total
        first = max(0, total - min(most, CAPACITY - 64))  # keep clear of the place being written
        return self._records[np.arange(first, total) % CAPACITY].copy()
