"""What a stream got and what it cost: outputs on time, not outputs.

Goodput counts outputs that met their deadline.  A beat on which nothing was let in, because the
stream was held back or shed, is a missed output like one that came late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physis_core.errors import InputError
from physis_core.units import NS_PER_MS, NS_PER_S

Times = NDArray[np.int64]


@dataclass(frozen=True)
class StreamGoodput:
    """One stream over a span of time.

    Attributes:
        outputs: chunks finished.
        on_time: those that met their deadline.
        skipped: beats on which no chunk was let in.
        period_p50_ms: interval between finished chunks, median.
        period_p99_ms: 99th percentile of it.
        response_p50_ms: from the planned entrance to the finished chunk, median.
        response_p99_ms: 99th percentile of it.
    """

    outputs: int
    on_time: int
    skipped: int
    period_p50_ms: float
    period_p99_ms: float
    response_p50_ms: float
    response_p99_ms: float

    @property
    def on_time_ratio(self) -> float:
        """Share of the planned outputs that came, and in time."""
        planned = self.outputs + self.skipped
        return self.on_time / planned if planned else float('nan')


def stream_goodput(released_ns: Times, finished_ns: Times, due_ns: Times, period_ns: int
                   ) -> StreamGoodput:
    """The account of consecutive chunks of one stream, one entry a chunk."""
    if not len(released_ns) == len(finished_ns) == len(due_ns):
        raise InputError(f'{len(released_ns)} releases, {len(finished_ns)} ends and {len(due_ns)} '
                         'deadlines; give one of each for every chunk')
    skipped = 0
    if period_ns > 0 and len(released_ns) > 1:
        beats = np.rint(np.diff(released_ns) / period_ns).astype(np.int64)
        skipped = int(np.maximum(beats - 1, 0).sum())
    period_p50, period_p99 = _percentiles_ms(np.diff(finished_ns))
    response_p50, response_p99 = _percentiles_ms(finished_ns - released_ns)
    return StreamGoodput(len(finished_ns), int((finished_ns <= due_ns).sum()), skipped,
                         period_p50, period_p99, response_p50, response_p99)


@dataclass(frozen=True)
class PoolGoodput:
    """All streams of a pool over a span of time.

    Attributes:
        streams: their accounts.
        devices: how many worked for them.
        wall_s: length of the span [s].
    """

    streams: tuple[StreamGoodput, ...]
    devices: int
    wall_s: float

    @property
    def on_time(self) -> int:
        """Outputs in time."""
        return sum(stream.on_time for stream in self.streams)

    @property
    def on_time_ratio(self) -> float:
        """Share of all planned outputs that came, and in time."""
        planned = sum(stream.outputs + stream.skipped for stream in self.streams)
        return self.on_time / planned if planned else float('nan')

    @property
    def goodput_per_s(self) -> float:
        """Outputs in time, a second."""
        return self.on_time / self.wall_s

    @property
    def device_s_per_output(self) -> float:
        """C = devices * wall time / outputs in time [device-seconds]."""
        return self.devices * self.wall_s / self.on_time if self.on_time else float('inf')


def span_s(first_ns: int, last_ns: int) -> float:
    """Length of a span of time [s]; it must not be empty."""
    if last_ns <= first_ns:
        raise InputError(f'a span from {first_ns} to {last_ns} ns is empty; measure for longer')
    return (last_ns - first_ns) / NS_PER_S


def _percentiles_ms(values_ns: Sequence[int] | Times) -> tuple[float, float]:
    if not len(values_ns):
        return float('nan'), float('nan')
    p50, p99 = np.percentile(values_ns, (50, 99))
    return float(p50) / NS_PER_MS, float(p99) / NS_PER_MS
