"""The output buffer: which finished chunks are delivered, and whether they kept their deadline.

The deadline of chunk i is the due time of its first control point.  Deadlines come from the
engine's steady pace, never from the chunk before, so lateness cannot accumulate; when the engine
itself had to start its pace anew, deadlines are anchored anew and that is counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from physis_core.delivery.chunk import PlannedChunk
from physis_core.delivery.handover import Handover
from physis_core.delivery.timeline import Timeline


class Verdict(str, Enum):
    """What became of a finished chunk."""

    ON_TIME = 'on time'
    LATE = 'late, its remaining points are played'
    TOO_LATE = 'dropped: nothing of it was left to play'
    TOO_OLD = 'dropped: its observation was too old'
    OLD_EPOCH = 'dropped: it belongs to an earlier epoch'
    OUT_OF_ORDER = 'dropped: a newer chunk was delivered before'

    @property
    def delivered(self) -> bool:
        """Whether the chunk goes to the robot."""
        return self in (Verdict.ON_TIME, Verdict.LATE)


@dataclass
class DeliveryCounts:
    """Counts of one epoch.

    Attributes:
        delivered: chunks that went to the robot.
        missed: chunks that were finished after their deadline, delivered or not.
        dropped: chunks that did not go to the robot.
        reanchored: times the deadlines began anew at another pace or phase.
        last_drop: why the last dropped chunk was dropped.
    """

    delivered: int = 0
    missed: int = 0
    dropped: int = 0
    reanchored: int = 0
    last_drop: str = ''


@dataclass(frozen=True, eq=False)
class Delivery:
    """A verdict, and the chunk to deliver (None: it was dropped)."""

    verdict: Verdict
    chunk: PlannedChunk | None


class OutputBuffer:
    """Decides about finished chunks; used by one thread.

    Nothing waits here for its time: a delivered chunk says by absolute time when it is to be
    played.  What is delivered and not yet due is the buffer's depth.
    """

    def __init__(self, handover: Handover, period_ns: int, max_age_ns: int) -> None:
        """Make a buffer.

        Args:
            handover: how a chunk takes over from the one before.
            period_ns: interval between deadlines.
            max_age_ns: an action older than this when it is due is not delivered.
        """
        self._handover = handover
        self._period_ns = period_ns
        self._max_age_ns = max_age_ns
        self._due: deque[int] = deque(maxlen=64)
        self._last: PlannedChunk | None = None
        self.plan = Timeline()
        self.epoch = 0
        self.counts = DeliveryCounts()

    def begin_epoch(self, epoch: int) -> None:
        """Drop whatever is planned; chunks of other epochs are dropped from now on."""
        self.plan.clear()
        self._handover.reset()
        self._due.clear()
        self._last = None
        self.epoch = epoch
        self.counts = DeliveryCounts()

    def offer(self, chunk: PlannedChunk, now_ns: int) -> Delivery:
        """Decide about a finished chunk, and plan it if it is delivered."""
        verdict = self._judge(chunk, now_ns)
        if verdict is not Verdict.OLD_EPOCH and not chunk.on_time:
            self.counts.missed += 1
        if not verdict.delivered:
            if verdict is not Verdict.OLD_EPOCH:
                self.counts.dropped += 1
                self.counts.last_drop = verdict.value
            return Delivery(verdict, None)
        self._follow_anchor(chunk)
        taken = self._handover.take_over(self.plan, chunk)
        self.plan.commit(taken)
        # A controller that follows the points is one period behind the plan.
        self.plan.forget_before(now_ns - chunk.period_ns)
        self._due.append(chunk.due_ns)
        self._last = chunk
        self.counts.delivered += 1
        return Delivery(verdict, taken)

    def next_due_ns(self, earliest_ns: int) -> int:
        """When the next chunk will be due, if the beat goes on; not before ``earliest_ns``."""
        if self._last is None:
            return earliest_ns
        beats = max(-(-(earliest_ns - self._last.due_ns) // self._period_ns), 1)
        return self._last.due_ns + beats * self._period_ns

    def depth(self, now_ns: int) -> int:
        """Chunks that were delivered and are not yet due."""
        while self._due and self._due[0] <= now_ns:
            self._due.popleft()
        return len(self._due)

    def _judge(self, chunk: PlannedChunk, now_ns: int) -> Verdict:
        if chunk.epoch != self.epoch:
            return Verdict.OLD_EPOCH
        if self._last is not None and (
                chunk.chunk <= self._last.chunk or chunk.due_ns < self._last.due_ns):
            return Verdict.OUT_OF_ORDER
        # A point is only worth delivering if its moment is still to come.
        if now_ns >= chunk.time_ns(chunk.points - 1):
            return Verdict.TOO_LATE
        if max(chunk.due_ns, now_ns) - chunk.capture_ns > self._max_age_ns:
            return Verdict.TOO_OLD
        return Verdict.ON_TIME if chunk.on_time else Verdict.LATE

    def _follow_anchor(self, chunk: PlannedChunk) -> None:
        if self._last is None:
            return
        expected_ns = self._last.due_ns + (chunk.chunk - self._last.chunk) * self._period_ns
        if abs(chunk.due_ns - expected_ns) > self._period_ns // 4:
            self.counts.reanchored += 1
