"""Percentiles over a sliding window, not over all time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Of the values in a window; all NaN where it is empty."""

    mean: float
    p50: float
    p99: float
    max: float


class Window:
    """The newest ``most`` values that are not older than the window."""

    def __init__(self, window_s: float, most: int = 1024) -> None:
        self._window_ns = round(window_s * 1e9)
        self._values: deque[tuple[int, float]] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()

    def add(self, value: float, now_ns: int) -> None:
        """A value was measured at ``now_ns``."""
        self._values.append((now_ns, value))

    def summary(self, now_ns: int) -> Summary:
        """Mean, median, 99th percentile and maximum of what is in the window."""
        while self._values and self._values[0][0] < now_ns - self._window_ns:
            self._values.popleft()
        if not self._values:
            return Summary(*(float('nan'),) * 4)
        values = np.array([value for _, value in self._values])
        p50, p99 = np.percentile(values, (50, 99))
        return Summary(float(values.mean()), float(p50), float(p99), float(values.max()))
