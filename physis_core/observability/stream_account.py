"""The account of one stream: four frequencies, the age in its parts, deadlines.

It is told what happens and adds nothing of its own: no frequency is derived from another, and none
from a setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from physis_core.observability.frequency import CountedFrequency, Frequency
from physis_core.observability.percentiles import Summary, Window
from physis_core.units import s_from_ns

AGE_PARTS = ('capture', 'queue', 'response', 'handoff')


@dataclass(frozen=True)
class StreamNumbers:
    """The numbers of one window.

    Attributes:
        replan_hz: newer observations that reached a delivered chunk; NaN while the second one
            since the begin, or since a wanted pause, is awaited.
        chunk_hz: chunks delivered; likewise.
        servo_hz: control points played; NaN without a servo.
        age_s: age of actions when they took effect.
        part_s: each part of it, by name.
        on_time_ratio: share of the window's finished chunks that met their deadline.
        dropped_ratio: share of the window's finished chunks that were not delivered.
        response_lateness_s: by how much chunks were finished after (-: before) their deadline.
    """

    replan_hz: float
    chunk_hz: float
    servo_hz: float
    age_s: Summary
    part_s: dict[str, Summary]
    on_time_ratio: float
    dropped_ratio: float
    response_lateness_s: Summary


class StreamAccount:
    """Keeps the windows of one stream; the caller sees to it that one thread uses it at a time."""

    def __init__(self, window_s: float, warm_up_chunks: int) -> None:
        """Make empty windows.

        Args:
            window_s: length of the windows [s].
            warm_up_chunks: so many first chunks are left out of ages and deadlines: what a cold
                start costs says nothing about what follows.
        """
        self.window_s = window_s
        self._warm_up_chunks = warm_up_chunks
        self._seen = 0
        self._newest_capture_ns = 0
        self._replan = Frequency(window_s)
        self._chunk = Frequency(window_s)
        self._servo = CountedFrequency(min(window_s, 2.0))
        self._age = Window(window_s)
        self._parts = {name: Window(window_s) for name in AGE_PARTS}
        self._on_time = Window(window_s)
        self._dropped = Window(window_s)
        self._lateness = Window(window_s)

    def begin_epoch(self) -> None:
        """What was measured before a reset is not mixed with what comes after it."""
        self._newest_capture_ns = 0
        for frequency in (self._replan, self._chunk):
            frequency.clear()
        for window in (self._age, *self._parts.values(), self._on_time, self._dropped,
                       self._lateness):
            window.clear()

    def resume(self, expected_ns: int) -> None:
        """Chunks are made, for the first time or again after a wanted pause: rates begin anew.

        ``expected_ns`` is when the first chunk is due.
        """
        for frequency in (self._replan, self._chunk):
            frequency.clear(expected_ns)

    def finished(self, finished_ns: int, due_ns: int, now_ns: int, *, dropped: bool) -> None:
        """A chunk left the pipeline, to be delivered or ``dropped``."""
        self._seen += 1
        self._dropped.add(float(dropped), now_ns)
        if self._warm:
            self._on_time.add(float(finished_ns <= due_ns), now_ns)
            self._lateness.add(s_from_ns(finished_ns - due_ns), now_ns)

    def delivered(self, capture_ns: int, now_ns: int) -> None:
        """A chunk was delivered; it counts as a replan if its observation is a newer one."""
        self._chunk.count(now_ns)
        if capture_ns > self._newest_capture_ns:
            self._newest_capture_ns = capture_ns
            self._replan.count(now_ns)

    def took_effect(self, parts_ns: Sequence[int], now_ns: int) -> None:
        """An action took effect; the parts of its age in the order of ``AGE_PARTS``."""
        if self._warm:
            self._age.add(s_from_ns(sum(parts_ns)), now_ns)
            for name, part_ns in zip(AGE_PARTS, parts_ns, strict=True):
                self._parts[name].add(s_from_ns(part_ns), now_ns)

    def servo_played(self, played: int, now_ns: int) -> None:
        """The servo has played so many control points since its start."""
        self._servo.read(played, now_ns)

    def numbers(self, now_ns: int) -> StreamNumbers:
        """The numbers of the window that ends now."""
        return StreamNumbers(
            self._replan.hz(now_ns), self._chunk.hz(now_ns), self._servo.hz(),
            self._age.summary(now_ns),
            {name: window.summary(now_ns) for name, window in self._parts.items()},
            self._on_time.summary(now_ns).mean, self._dropped.summary(now_ns).mean,
            self._lateness.summary(now_ns))

    @property
    def _warm(self) -> bool:
        return self._seen > self._warm_up_chunks
