"""Reading an engine that runs in another process of the same user."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from physis_core.errors import InputError
from physis_core.observability.snapshot import (
    EdgeReading,
    EdgeRow,
    MemorySplit,
    Snapshot,
    edge_rates,
    snapshot,
    window_start_ns,
)
from physis_core.runtime.chunk_log import ChunkLog
from physis_core.runtime.descriptor import Descriptor, find_engine, running_engines
from physis_core.runtime.device_memory import resident_bytes
from physis_core.runtime.telemetry import EdgeMeter, StageLog
from physis_core.shared_block import SharedBlock


def add_engine_argument(parser: argparse.ArgumentParser) -> None:
    """Which engine."""
    parser.add_argument('--pid', type=int, default=None, metavar='PID',
                        help='process of the engine (the one that was started last)')


@dataclass
class _Attached:
    """The logs of one engine."""

    descriptor: Descriptor
    chunks: ChunkLog
    stages: list[StageLog]


class EngineWatch:
    """Takes snapshots of an engine; follows it when it makes new links."""

    def __init__(self, pid: int | None = None) -> None:
        """Attach.

        Raises:
            InputError: no such engine is running.
        """
        self._attached = _attach(find_engine(pid))
        self._edges = self._read_edges()
        self._read_ns = time.monotonic_ns()

    @property
    def descriptor(self) -> Descriptor:
        """What the engine has published."""
        return self._attached.descriptor

    @property
    def name(self) -> str:
        """Which engine this is, and whether there are others."""
        others = [str(one.pid) for one in running_engines() if one.pid != self.descriptor.pid]
        more = f'; others run in {", ".join(others)}: choose with --pid' if others else ''
        return f'engine of `{self.descriptor.model}` in process {self.descriptor.pid}{more}'

    @property
    def chunks(self) -> np.ndarray:
        """Its latest chunks."""
        return self._attached.chunks.latest()

    @property
    def tasks(self) -> list[np.ndarray]:
        """The latest tasks of each device."""
        return [log.latest() for log in self._attached.stages]

    def snapshot(self, window_s: float) -> Snapshot:
        """The last seconds.

        Raises:
            InputError: the engine has ended.
        """
        self._attached.descriptor = find_engine(self.descriptor.pid)
        now_ns = time.monotonic_ns()
        return snapshot(self.descriptor.model, window_start_ns(now_ns, window_s), now_ns,
                        self.chunks, self.tasks, self._edge_rates(now_ns), self._memory())

    def _edge_rates(self, now_ns: int) -> list[EdgeRow]:
        before, self._edges = self._edges, self._read_edges()
        seconds = max(1e-3, (now_ns - self._read_ns) / 1e9)
        self._read_ns = now_ns
        return edge_rates(before, self._edges, seconds)

    def _read_edges(self) -> list[EdgeReading]:
        readings = []
        for edge in self.descriptor.edges:
            try:
                meter = EdgeMeter(SharedBlock.attach(edge.meter))
            except OSError:
                continue  # the link has just gone
            readings.append(EdgeReading(edge.sender, edge.receiver, edge.kind, meter.messages,
                                        meter.payload_bytes, meter.refusals, meter.mean_wait_ns))
        return readings

    def _memory(self) -> Sequence[MemorySplit]:
        splits = []
        for pid, (weights, kv, at_start) in zip(self.descriptor.worker_pids,
                                                self.descriptor.memory, strict=True):
            peak = resident_bytes(pid, peak=True)
            splits.append(MemorySplit(weights, kv, max(0, peak - at_start),
                                      max(0, at_start - weights - kv)))
        return splits


def _attach(descriptor: Descriptor) -> _Attached:
    try:
        return _Attached(descriptor, ChunkLog(SharedBlock.attach(descriptor.chunk_log)),
                         [StageLog(SharedBlock.attach(address))
                          for address in descriptor.stage_logs])
    except OSError as error:
        raise InputError(f'the engine of process {descriptor.pid} has just ended '
                         f'({error.strerror}); start it again') from error
