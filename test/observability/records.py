"""Records as devices and engines keep them."""

from __future__ import annotations

import numpy as np

MS = 1_000_000

TASK = np.dtype([(name, '<i8') for name in (
    'stream', 'epoch', 'chunk', 'step', 'block', 'batch', 'streams', 'arrived_ns', 'start_ns',
    'end_ns')])
CHUNK = np.dtype([(name, '<i8') for name in (
    'stream', 'epoch', 'chunk', 'capture_ns', 'received_ns', 'release_ns', 'started_ns',
    'finished_ns', 'due_ns', 'taken_ns', 'timed', 'priority', 'period_ns')])


def tasks(*rows: tuple[int, int, int, int, int, float, float, float]) -> np.ndarray:
    """Of (stream, chunk, step, block, batch, arrived ms, start ms, end ms), all of epoch 1."""
    records = np.zeros(len(rows), TASK)
    for record, (stream, chunk, step, block, batch, arrived, start, end) in zip(
            records, rows, strict=True):
        record['stream'], record['epoch'], record['chunk'] = stream, 1, chunk
        record['step'], record['block'] = step, block
        record['batch'] = record['streams'] = batch
        record['arrived_ns'], record['start_ns'] = arrived * MS, start * MS
        record['end_ns'] = end * MS
    return records


def chunks(stream: int, beats: list[int], period_ms: int = 10, lead_ms: int = 8,
           took_ms: int = 5) -> np.ndarray:
    """Chunks of one stream that entered on these beats."""
    records = np.zeros(len(beats), CHUNK)
    for number, beat in enumerate(beats):
        record = records[number]
        release = beat * period_ms * MS
        record['stream'], record['epoch'], record['chunk'] = stream, 1, number
        record['release_ns'], record['started_ns'] = release, release + MS
        record['finished_ns'] = record['taken_ns'] = release + took_ms * MS
        record['due_ns'] = release + lead_ms * MS
        record['timed'], record['period_ns'] = 1, period_ms * MS
    return records
