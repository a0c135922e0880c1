"""What became of every chunk, in a ring of shared memory that anyone may read.

One id, (stream, epoch, chunk), ties a record here to the tasks in the devices' stage logs.
"""

from __future__ import annotations

import numpy as np

from physis_core.runtime.packets import aligned
from physis_core.shared_block import SharedBlock

CHUNK_RECORD = np.dtype([
    ('stream', '<i4'), ('epoch', '<i4'), ('chunk', '<i8'), ('capture_ns', '<i8'),
    ('received_ns', '<i8'), ('release_ns', '<i8'), ('started_ns', '<i8'), ('finished_ns', '<i8'),
    ('due_ns', '<i8'), ('taken_ns', '<i8'), ('timed', '<i4'), ('priority', '<i4'),
    ('period_ns', '<i8')])
"""One finished chunk (steady ns): ``release`` is its planned entrance, ``taken`` when the engine
had it; ``timed``: it has a deadline."""

CAPACITY = 8192


class ChunkLog:
    """The last finished chunks of an engine.  Written by its loop alone."""

    def __init__(self, block: SharedBlock) -> None:
        self.block = block
        self._count = np.frombuffer(block.memory, np.int64, 1)
        self._records = np.frombuffer(block.memory, CHUNK_RECORD, CAPACITY, aligned(8))

    @classmethod
    def create(cls) -> ChunkLog:
        """An empty log."""
        return cls(SharedBlock.create(aligned(8) + CAPACITY * CHUNK_RECORD.itemsize))

    def append(self, *fields: int) -> None:
        """Add one record, in the order of :data:`CHUNK_RECORD`."""
        count = int(self._count[0])
        self._records[count % CAPACITY] = fields
        self._count[0] = count + 1

    @property
    def total(self) -> int:
        """Chunks since the start."""
        return int(self._count[0])

    def latest(self, most: int = CAPACITY) -> np.ndarray:
        """A copy of the latest records, oldest first."""
        total = self.total
        first = max(0, total - min(most, CAPACITY - 64))  # keep clear of the place being written
        return self._records[np.arange(first, total) % CAPACITY].copy()
