"""When a device is free, in a week that repeats every period."""

from __future__ import annotations

from bisect import bisect_right, insort


class Calendar:
    """Reservations of one device, modulo the period [us], in slots of one microsecond."""

    def __init__(self, period_us: int) -> None:
        self.period_us = period_us
        self.reserved_us = 0
        self._busy: list[tuple[int, int]] = []  # (start in 0..T-1, length), disjoint on the circle
        self._last_end_us: int | None = None

    def reserve(self, ready_us: int, length_us: int) -> int | None:
        """The first start from ``ready_us`` on with a gap of that length; None: there is none."""
        offset = ready_us % self.period_us
        if length_us > self.period_us - self.reserved_us:
            return None
        begin = offset
        busy = self._busy
        index = bisect_right(busy, (offset, self.period_us))
        if busy:  # the reservation before may reach past the offset
            start, length = busy[index - 1]
            before = start if index else start - self.period_us
            begin = max(begin, before + length)
        for step in range(len(busy) + 1):
            if not busy:
                break
            laps, place = divmod(index + step, len(busy))
            start = busy[place][0] + laps * self.period_us
            if start - begin >= length_us:
                break
            begin = start + busy[place][1]
        if begin - offset >= self.period_us:
            return None
        self._take(begin, length_us)
        return ready_us + begin - offset

    def append(self, ready_us: int, length_us: int) -> int | None:
        """The next start from ``ready_us`` on that is directly after the latest reservation."""
        if self._last_end_us is None:
            return self.reserve(ready_us, length_us)
        if length_us > self.period_us - self.reserved_us:
            return None
        begin = self._last_end_us
        self._take(begin, length_us)
        return ready_us + (begin - ready_us) % self.period_us

    def _take(self, begin_us: int, length_us: int) -> None:
        insort(self._busy, (begin_us % self.period_us, length_us))
        self.reserved_us += length_us
        self._last_end_us = begin_us + length_us
