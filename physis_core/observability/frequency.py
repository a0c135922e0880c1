"""How often something happens, over a sliding window."""

from __future__ import annotations

from collections import deque

from physis_core.units import NS_PER_S

# After this many mean gaps without an event the frequency is zero, not a fading memory.
_SILENT_GAPS = 3.0


class Frequency:
    """Rate of events over a window of time; at most ``most`` events are kept.

    It falls to zero as soon as events stay away: a stopped camera must not look as if it were
    slowing down for the length of a window.
    """

    def __init__(self, window_s: float = 5.0, silence_s: float = 0.8, most: int = 4096) -> None:
        """Make an empty window.

        Args:
            window_s: length of the window [s].
            silence_s: silence that means zero, unless events have always been further apart [s].
            most: events kept; at a higher rate the window is shorter.
        """
        self._window_ns = round(window_s * NS_PER_S)
        self._silence_ns = round(silence_s * NS_PER_S)
        self._events: deque[int] = deque(maxlen=most)
        self._expected_ns: int | None = None

    def clear(self, expected_ns: int | None = None) -> None:
        """Forget all events; ``expected_ns``: when the first one is due, before which none is
        missed (None: at once)."""
        self._events.clear()
        self._expected_ns = expected_ns

    def count(self, now_ns: int) -> None:
        """An event has happened."""
        self._events.append(now_ns)
        self._forget(now_ns)

    def hz(self, now_ns: int) -> float:
        """Events a second; 0 after silence, NaN while there can be no second event yet."""
        self._forget(now_ns)
        if not self._events:
            awaited = self._expected_ns is not None and (
                now_ns <= self._expected_ns + self._silence_ns)
            return float('nan') if awaited else 0.0
        silent_ns = now_ns - self._events[-1]
        if len(self._events) == 1:
            return 0.0 if silent_ns > self._silence_ns else float('nan')
        span_ns = self._events[-1] - self._events[0]
        mean_gap_ns = span_ns / (len(self._events) - 1)
        if silent_ns > max(self._silence_ns, _SILENT_GAPS * mean_gap_ns) or not span_ns:
            return 0.0
        return NS_PER_S / mean_gap_ns

    def _forget(self, now_ns: int) -> None:
        begin_ns = now_ns - self._window_ns
        # Two are kept, so that something slower than the window still has a rate.
        while len(self._events) > 2 and self._events[0] < begin_ns:
            self._events.popleft()


class CountedFrequency:
    """Rate of a counter that another process advances, from readings of it."""

    def __init__(self, window_s: float = 5.0, most: int = 256) -> None:
        self._window_ns = round(window_s * NS_PER_S)
        self._readings: deque[tuple[int, int]] = deque(maxlen=most)

    def read(self, count: int, now_ns: int) -> None:
        """The counter stood at ``count`` at ``now_ns``; a counter that went back starts anew."""
        if self._readings and count < self._readings[-1][0]:
            self._readings.clear()
        self._readings.append((count, now_ns))
        while len(self._readings) > 2 and self._readings[0][1] < now_ns - self._window_ns:
            self._readings.popleft()

    def hz(self) -> float:
        """Counts a second over the window; NaN before the second reading."""
        if len(self._readings) < 2:
            return float('nan')
        (first, begin_ns), (last, end_ns) = self._readings[0], self._readings[-1]
        return (last - first) * NS_PER_S / (end_ns - begin_ns) if end_ns > begin_ns else 0.0
