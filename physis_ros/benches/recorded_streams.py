"""Recorded streams of chunks: those that come with the package, and those of `wam_node`.

What comes with the package was recorded in the demo, a session for each latency N, and packed:

    physis demo --episodes 4 --period-ms 80 --delay-chunks N --record FOLDER/N
    python -m physis_ros.benches.recorded_streams FOLDER/0 FOLDER/1 FOLDER/2 FOLDER/4
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.delivery.chunk import PlannedChunk, finite_difference
from physis_core.errors import InputError

FILE = Path(__file__).with_name('so101_chunks.npz')
SOURCE = ('chunks of so101 recorded in `physis demo --episodes 4 --period-ms 80 --delay-chunks N`, '
          'N the latency; the model was not told a prefix')
_CHUNKS = 'chunks.jsonl'
_ARRAYS = ('positions', 'velocities')
_NUMBERS = tuple(field.name for field in fields(PlannedChunk) if field.name not in _ARRAYS)


@dataclass(frozen=True, eq=False)
class RecordedStream:
    """What one session of a policy made.

    Attributes:
        latency_chunks: planned time from letting a chunk in to its first control point, beyond
            what the computation takes, in chunk periods.
        epochs: the chunks of each epoch, in order, two at least.
    """

    latency_chunks: float
    epochs: list[list[PlannedChunk]]

    @property
    def period_ns(self) -> int:
        """The usual interval between two chunks."""
        return int(np.median(np.concatenate([
            np.diff([chunk.due_ns for chunk in epoch]) for epoch in self.epochs])))

    @property
    def overlap_points(self) -> int:
        """Control points of a chunk that the next one speaks about as well."""
        chunk = self.epochs[0][0]
        return max(chunk.points - round(self.period_ns / chunk.period_ns), 0)

    @property
    def lead_ms(self) -> float:
        """From an observation's arrival at the engine to the first control point, median [ms]."""
        return float(np.median([
            chunk.due_ns - chunk.received_ns for epoch in self.epochs for chunk in epoch])) / 1e6


def shipped_streams(file: Path = FILE) -> list[RecordedStream]:
    """The streams that come with the package, by latency."""
    with np.load(file) as packed:
        return [RecordedStream(int(latency), _by_epoch(_unpacked(
            packed[f'numbers_{latency}'], packed[f'positions_{latency}'])))
            for latency in packed['latencies']]


def read_recording(path: Path) -> RecordedStream:
    """What `wam_node` recorded; its latency is the lead over the period.

    Args:
        path: a session, its `chunks.jsonl`, or its `observations`.

    Raises:
        InputError: no such file, or no epoch of two chunks in it.
    """
    if path.is_dir():
        beside = path.resolve().with_name(_CHUNKS)
        inside = path / _CHUNKS
        path = beside if beside.exists() and not inside.exists() else inside
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f'recording {path} cannot be read ({error}); record one with the '
                         'parameter `record` of wam_node') from error
    epochs = _by_epoch(_chunk(line, np.array(line.pop('positions'))) for line in lines)
    if not epochs:
        raise InputError(f'recording {path} has no two chunks of one epoch; record a longer run')
    stream = RecordedStream(0.0, epochs)
    return replace(stream, latency_chunks=round(stream.lead_ms * 1e6 / stream.period_ns, 2))


def pack(streams: Sequence[RecordedStream], file: Path = FILE) -> None:
    """Write streams as the package ships them; positions are those of the model, float32."""
    arrays: dict[str, Any] = {
        'latencies': np.array([stream.latency_chunks for stream in streams], np.int64)}
    for latency, stream in zip(arrays['latencies'].tolist(), streams, strict=True):
        chunks = [chunk for epoch in stream.epochs for chunk in epoch]
        arrays[f'numbers_{latency}'] = np.array(
            [[getattr(chunk, name) for name in _NUMBERS] for chunk in chunks], np.int64)
        arrays[f'positions_{latency}'] = np.array(
            [chunk.positions for chunk in chunks], np.float32)
    np.savez_compressed(file, **arrays)


def _unpacked(numbers: np.ndarray, positions: np.ndarray) -> Iterator[PlannedChunk]:
    for row, points in zip(numbers.tolist(), positions.astype(np.float64), strict=True):
        yield _chunk(dict(zip(_NUMBERS, row, strict=True)), points)


def _chunk(numbers: dict[str, int], positions: np.ndarray) -> PlannedChunk:
    return PlannedChunk(**numbers, positions=positions,
                        velocities=finite_difference(positions, numbers['period_ns']))


def _by_epoch(chunks: Iterator[PlannedChunk]) -> list[list[PlannedChunk]]:
    epochs = [list(group) for _, group in groupby(chunks, key=lambda chunk: chunk.epoch)]
    return [epoch for epoch in epochs if len(epoch) > 1]


def _main() -> None:
    parser = argparse.ArgumentParser(description='Pack recordings for the package.')
    parser.add_argument('folders', nargs='+', type=Path, help='named by latency, a session in each')
    folders: list[Path] = parser.parse_args().folders
    pack([replace(read_recording(next(folder.iterdir())), latency_chunks=int(folder.name))
          for folder in folders])
    print(f'{FILE}: {FILE.stat().st_size / 1e3:.0f} kB')


if __name__ == '__main__':
    _main()
