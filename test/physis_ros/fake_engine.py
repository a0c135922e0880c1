"""An engine without processes or model: the test decides when a chunk is finished, and how."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from physis_core.errors import StreamError
from physis_core.runtime.device_memory import DeviceProcess
from physis_core.runtime.engine import FinishedChunk, StreamOptions
from physis_core.runtime.telemetry import EdgeMeter, StageLog
from physis_core.runtime.wiring import LinkKey

MS = 1_000_000
POINTS, JOINTS = 8, 6


@dataclass
class Observed:
    arrays: Mapping[str, np.ndarray]
    capture_ns: int
    received_ns: int


class FakeStream:
    """The interface of `physis_core.runtime.engine.Stream`."""

    def __init__(self, options: StreamOptions, epoch: int) -> None:
        self.options = options
        self.epoch = epoch
        self.ended: StreamError | None = None
        self.paused = False
        self.in_flight = self.held_back = self.shed = 0
        self.plan = SimpleNamespace(max_in_flight=4)
        self.observed: list[Observed] = []
        self.events: list[str] = []
        self._chunks: queue.Queue[FinishedChunk | StreamError] = queue.Queue()
        self._next = 0

    # -- what the node calls

    @property
    def period_ns(self) -> int:
        return self.options.period_ns or 0

    def observe(self, observation: Mapping[str, np.ndarray], capture_ns: int) -> int:
        if self.ended:
            raise self.ended
        self.observed.append(Observed(dict(observation), capture_ns, time.monotonic_ns()))
        return len(self.observed)

    def next_chunk(self, timeout_s: float | None = None) -> FinishedChunk | None:
        try:
            found = self._chunks.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(found, StreamError):
            self.ended = found
            raise found
        return found

    def reset(self) -> int:
        self.events.append('reset')
        self.epoch += 1
        self._next = 0
        return self.epoch

    def pause(self, paused: bool = True) -> None:
        self.paused = paused
        self.events.append('pause' if paused else 'resume')

    def close(self) -> None:
        self.events.append('close')
        self.ended = self.ended or StreamError('the stream was closed')

    # -- what the test calls

    def finish(self, *, due_in_ms: float = 40.0, due_ns: int | None = None, start: float = 0.0,
               speed: float = 1.0, capture_ns: int | None = None, epoch: int | None = None,
               positions: np.ndarray | None = None, number: int | None = None
               ) -> FinishedChunk:
        """Finish the next chunk now, or another `number`; its joints move at `speed` from `start`.
        """
        now_ns = time.monotonic_ns()
        capture_ns = now_ns - 50 * MS if capture_ns is None else capture_ns
        if positions is None:
            times_s = np.arange(POINTS) * 0.02
            positions = np.repeat((start + speed * times_s)[:, None], JOINTS, 1)
        chunk = FinishedChunk(
            stream=0, epoch=self.epoch if epoch is None else epoch,
            chunk=self._next if number is None else number,
            outputs={'positions': positions.astype(np.float32)}, capture_ns=capture_ns,
            received_ns=capture_ns + 5 * MS, release_ns=now_ns - 30 * MS,
            started_ns=capture_ns + 10 * MS, finished_ns=now_ns,
            due_ns=now_ns + round(due_in_ms * MS) if due_ns is None else due_ns,
            observation_ids=(1,))
        self._next = chunk.chunk + 1
        self._chunks.put(chunk)
        return chunk

    def fail(self, error: StreamError) -> None:
        """End the stream by itself."""
        self._chunks.put(error)


@dataclass
class FakeEngine:
    """The interface of `physis_core.runtime.engine.Engine`."""

    streams: list[FakeStream] = field(default_factory=list)
    closed: bool = False
    logs: list[StageLog] = field(default_factory=list)
    meters: dict[LinkKey, EdgeMeter] = field(default_factory=dict)

    def open_stream(self, options: StreamOptions) -> FakeStream:
        self.streams.append(FakeStream(options, epoch=1 + 10 * len(self.streams)))
        return self.streams[-1]

    def stage_logs(self) -> list[StageLog]:
        return self.logs

    def edge_meters(self) -> dict[LinkKey, EdgeMeter]:
        return self.meters

    def device_processes(self) -> list[DeviceProcess]:
        return [DeviceProcess(os.getpid(), 3 * 2**20, 2**20)]

    def close(self) -> None:
        self.closed = True
