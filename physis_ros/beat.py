"""A steady beat of absolute deadlines, and how well it is kept."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physis_core.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True)
class BeatQuality:
    """Over the newest beats; NaN before there were any.

    Attributes:
        period_ms: mean time between wake-ups [ms].
        late_p50_ms: wake-up after the deadline, median [ms].
        late_p99_ms: 99th percentile [ms].
        late_max_ms: maximum [ms].
    """

    period_ms: float
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float


class SteadyBeat:
    """Sleeps from deadline to deadline on the steady clock; owned by the thread that sleeps.

    A deadline that has passed by more than a period is skipped and counted: the beat never runs
    after the clock with a burst.
    """

    def __init__(self, rate_hz: float, kept_beats: int = 4096) -> None:
        self._period_ns = round(NS_PER_S / rate_hz)
        self._due_ns = time.monotonic_ns()
        self._woken_ns = np.zeros(kept_beats, np.int64)
        self._late_ns = np.zeros(kept_beats, np.int64)
        self._beats = 0
        self.missed = 0

    def wait(self) -> int:
        """Sleep until the next deadline; returns it (steady clock)."""
        self._due_ns += self._period_ns
        now_ns = time.monotonic_ns()
        behind = (now_ns - self._due_ns) // self._period_ns
        if behind > 0:
            self.missed += behind
            self._due_ns += behind * self._period_ns
        if self._due_ns > now_ns:
            time.sleep((self._due_ns - now_ns) / NS_PER_S)
        woken_ns = time.monotonic_ns()
        place = self._beats % len(self._late_ns)
        self._woken_ns[place] = woken_ns
        self._late_ns[place] = woken_ns - self._due_ns
        self._beats += 1
        return self._due_ns

    def restart(self) -> None:
        """Begin anew from now, without counting what was not waited for."""
        self._due_ns = time.monotonic_ns()

    def woken_ns(self) -> NDArray[np.int64]:
        """When it woke lately, oldest first (not while another thread waits on it)."""
        if self._beats <= len(self._woken_ns):
            return self._woken_ns[:self._beats]
        return np.roll(self._woken_ns, -(self._beats % len(self._woken_ns)))

    def quality(self) -> BeatQuality:
        """How well the beat was kept lately (may be called from any thread)."""
        kept = min(self._beats, len(self._late_ns))
        if kept < 2:
            return BeatQuality(*(float('nan'),) * 4)
        late_ms = self._late_ns[:kept] / NS_PER_MS
        woken_ns = self._woken_ns[:kept]
        p50, p99 = np.percentile(late_ms, (50, 99))
        period_ms = float(woken_ns.max() - woken_ns.min()) / NS_PER_MS / (kept - 1)
        return BeatQuality(period_ms, float(p50), float(p99), float(late_ms.max()))
