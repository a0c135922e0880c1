"""What became of every chunk, in a ring of shared memory that anyone may read.

One id, (stream, epoch, chunk), ties a record here to the tasks in the devices' stage logs.
"""

from __future__ import annotations

import numpy as np

from physis_core.runtime.telemetry import RecordLog

CHUNK_RECORD = np.dtype([
    ('stream', '<i4'), ('epoch', '<i4'), ('chunk', '<i8'), ('capture_ns', '<i8'),
    ('received_ns', '<i8'), ('release_ns', '<i8'), ('started_ns', '<i8'), ('finished_ns', '<i8'),
    ('due_ns', '<i8'), ('taken_ns', '<i8'), ('timed', '<i4'), ('priority', '<i4'),
    ('period_ns', '<i8')])
"""One finished chunk (steady ns): ``release`` is its planned entrance, ``taken`` when the engine
had it; ``timed``: it has a deadline."""


class ChunkLog(RecordLog):
    """The last finished chunks of an engine.  Written by its loop alone."""

    RECORD = CHUNK_RECORD
