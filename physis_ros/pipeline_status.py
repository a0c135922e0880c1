"""How the stages of the pipeline keep up with one another, for /diagnostics."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus

from physis_core.observability.frequency import CountedFrequency
from physis_core.observability.snapshot import window_start_ns
from physis_core.observability.stages import busy_ratio, stage_numbers
from physis_core.runtime.engine import Engine, Stream
from physis_core.runtime.wiring import LinkKey
from physis_core.units import NS_PER_MS, s_from_ns
from physis_ros.status import Limit, status_of

# Of each device; the percentiles of more would only be older.
_TASKS = 1024


@dataclass(frozen=True)
class _Slowest:
    """The stage with the greatest median service time, and the device that is busiest."""

    stage: str = 'no task has run'
    service_p50_ms: float = math.nan
    service_p99_ms: float = math.nan
    device: str = ''
    busy: float = math.nan
    queueing_p99_ms: float = math.nan


class PipelineWatch:
    """Reads an engine's logs and meters once a second; used by one thread."""

    def __init__(self, engine: Engine, window_s: float) -> None:
        self._engine = engine
        self._window_s = window_s
        self._refusals: dict[LinkKey, CountedFrequency] = {}
        self._stream: Stream | None = None
        self._held_back = self._shed = CountedFrequency(window_s)

    def status(self, node: str, stream: Stream | None, held_back: Limit) -> DiagnosticStatus:
        """What is slowest, and where it dams up; ``stream`` is the one that is open."""
        now_ns = time.monotonic_ns()
        slowest = self._slowest(now_ns)
        edge, refused_hz, wait_us = self._fullest_edge(now_ns)
        level, message = DiagnosticStatus.OK, slowest.stage
        values: dict[str, object] = {
            'slowest stage': slowest.stage,
            'its service time p50 [ms]': slowest.service_p50_ms,
            'its service time p99 [ms]': slowest.service_p99_ms,
            'busiest device': slowest.device, 'busy [0..1]': slowest.busy,
            'tasks waiting there p99 [ms]': slowest.queueing_p99_ms,
            'fullest link': edge, 'sends refused there [Hz]': refused_hz,
            'messages waiting there, mean [us]': wait_us}
        if stream is not None:
            ratio, shed_ratio = self._entrance(stream, now_ns)
            level = held_back.above(ratio)
            if level != DiagnosticStatus.OK:
                message = (f'backpressure: on {ratio:.0%} of the beats there was no room for a '
                           f'chunk; slowest is {slowest.stage}')
            values.update({
                'chunks in flight [1]': stream.in_flight,
                'most in flight [1]': stream.plan.max_in_flight,
                'beats without room [0..1]': ratio, 'beats shed [0..1]': shed_ratio})
        return status_of(node, 'pipeline', level, message, values)

    def _slowest(self, now_ns: int) -> _Slowest:
        first_ns = window_start_ns(now_ns, self._window_s)
        found = _Slowest()
        busiest: tuple[float, str, float] = (math.nan, '', math.nan)
        for device, log in enumerate(self._engine.stage_logs()):
            records = log.latest(_TASKS)
            records = records[records['end_ns'] >= first_ns]
            if not len(records):
                continue
            covered_ns = max(first_ns, int(records['start_ns'].min()))
            busy = busy_ratio(records, covered_ns, now_ns)
            if not busy <= busiest[0]:
                waited_ns = np.maximum(records['start_ns'] - records['arrived_ns'], 0)
                busiest = (busy, f'device {device}',
                           float(np.percentile(waited_ns, 99)) / NS_PER_MS)
            slowest = max(stage_numbers(records), key=lambda stage: stage.service_p50_ms)
            if not slowest.service_p50_ms <= found.service_p50_ms:
                found = _Slowest(
                    f'step {slowest.step} block {slowest.block} on device {device}',
                    slowest.service_p50_ms, slowest.service_p99_ms)
        return _Slowest(found.stage, found.service_p50_ms, found.service_p99_ms,
                        busiest[1], busiest[0], busiest[2])

    def _fullest_edge(self, now_ns: int) -> tuple[str, float, float]:
        """The link with the most refused sends, how many [Hz], and the mean wait on it [us]."""
        meters = self._engine.edge_meters()
        self._refusals = {edge: self._refusals.get(edge, CountedFrequency(self._window_s))
                          for edge in meters}
        worst = ('none', 0.0, math.nan)
        for edge, refusals in self._refusals.items():
            refusals.read(meters[edge].refusals, now_ns)
            if refusals.hz() > worst[1]:
                worst = (f'{_end(edge.sender)} to {_end(edge.receiver)} ({edge.kind})',
                         refusals.hz(), meters[edge].mean_wait_ns / 1e3)
        return worst

    def _entrance(self, stream: Stream, now_ns: int) -> tuple[float, float]:
        """Shares of the window's beats on which nothing was let in: no room, shed."""
        if stream is not self._stream:
            self._stream = stream
            self._held_back = CountedFrequency(self._window_s)
            self._shed = CountedFrequency(self._window_s)
        self._held_back.read(stream.held_back, now_ns)
        self._shed.read(stream.shed, now_ns)
        period_s = s_from_ns(stream.period_ns)
        return self._held_back.hz() * period_s, self._shed.hz() * period_s


def _end(device: int) -> str:
    return 'the engine' if device < 0 else f'device {device}'
