"""The planned motion of the joints, as knots on the steady clock.

A control point is addressed by absolute time: a chunk that comes late is evaluated where the clock
stands, and nothing is ever skipped by count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

import numpy as np

from physis_core.delivery.chunk import Floats, PlannedChunk
from physis_core.units import s_from_ns

# Points further apart than this are not joined: in between nothing is planned.
_GAP_PERIODS = 1.5
# A way to rest is never longer: whoever is so fast brakes harder.
_BRAKING_POINTS = 250


@dataclass(frozen=True, eq=False)
class Sample:
    """Where the plan is at ``time_ns``: ``[joints]`` each, and the chunk it comes from.

    ``towards`` is the chunk whose control point comes next; ``chunk`` itself where none is known.
    """

    time_ns: int
    position: Floats
    velocity: Floats
    chunk: PlannedChunk
    towards: PlannedChunk


class Timeline:
    """Keeps the newest plan for every moment; bounded by what is still to be played."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._points: list[int] = []
        self._owners: list[PlannedChunk] = []

    def __len__(self) -> int:
        return len(self._times)

    def clear(self) -> None:
        """Forget everything."""
        self._keep(slice(0, 0))

    def commit(self, chunk: PlannedChunk) -> None:
        """Let ``chunk`` be the plan from its due time on; older plans end there."""
        self._keep(slice(bisect_left(self._times, chunk.due_ns)))
        for point in range(chunk.points):
            self._times.append(chunk.time_ns(point))
            self._points.append(point)
            self._owners.append(chunk)

    def forget_before(self, now_ns: int) -> None:
        """Drop the knots that are not needed to play from ``now_ns`` on."""
        needed = bisect_right(self._times, now_ns) - 1
        if needed > 0:
            self._keep(slice(needed, None))

    def sample(self, now_ns: int) -> Sample | None:
        """The plan at ``now_ns``, or None before its begin, in a gap and after its validity.

        Between two control points positions follow the cubic Hermite polynomial of their positions
        and velocities, from the last point of a chunk to the first of the next one too: a policy
        that is executed later than planned at each handover begins to oscillate.  How far two
        chunks may disagree is the matter of the handover strategy, and of the servo's limits.
        Where nothing follows in time, positions go on at the last velocity.
        """
        index = bisect_right(self._times, now_ns) - 1
        if index < 0:
            return None
        chunk, point = self._owners[index], self._points[index]
        if now_ns >= chunk.valid_until_ns:
            return None
        begin_ns = self._times[index]
        position, velocity = chunk.positions[point], chunk.velocities[point]
        following = index + 1
        if following == len(self._times) or (
                self._times[following] - begin_ns > _GAP_PERIODS * chunk.period_ns):
            return Sample(now_ns, position + velocity * ((now_ns - begin_ns) * 1e-9), velocity,
                          chunk, chunk)
        return Sample(
            now_ns,
            *hermite(position, velocity, *self._knot(following),
                     (self._times[following] - begin_ns) * 1e-9, (now_ns - begin_ns) * 1e-9),
            chunk, self._owners[following])

    def last_before(self, now_ns: int) -> Sample | None:
        """The last control point before ``now_ns``, however long ago; None: there is none."""
        index = bisect_left(self._times, now_ns) - 1
        if index < 0:
            return None
        chunk, point = self._owners[index], self._points[index]
        return Sample(
            self._times[index], chunk.positions[point], chunk.velocities[point], chunk, chunk)

    @property
    def end_ns(self) -> int | None:
        """Until when there is something to play; None: the timeline is empty."""
        return self._owners[-1].valid_until_ns if self._owners else None

    def _knot(self, index: int) -> tuple[Floats, Floats]:
        owner, point = self._owners[index], self._points[index]
        return owner.positions[point], owner.velocities[point]

    def _keep(self, kept: slice) -> None:
        self._times = self._times[kept]
        self._points = self._points[kept]
        self._owners = self._owners[kept]


def braking(chunk: PlannedChunk, sample: Sample, deceleration: float) -> PlannedChunk:
    """The way to rest from a sample of the plan, as a chunk that begins there.

    Args:
        chunk: gives the control period and the times of its making.
        sample: where the motion is.
        deceleration: of every joint [rad/s^2]; more where that would take too many points.
    """
    period_s = s_from_ns(chunk.period_ns)
    speed = np.abs(sample.velocity)
    deceleration = max(deceleration, float(speed.max()) / (_BRAKING_POINTS * period_s))
    # The last point is at rest: one more than the slowest joint needs.
    points = int(np.ceil(speed.max() / (deceleration * period_s))) + 1
    times_s = period_s * np.arange(1, points + 1)[:, None]
    braked_s = np.minimum(times_s, speed / deceleration)
    velocities = np.sign(sample.velocity) * np.maximum(speed - deceleration * times_s, 0.0)
    travelled = sample.velocity * braked_s - (
        0.5 * np.sign(sample.velocity) * deceleration * braked_s**2)
    return replace(
        chunk, due_ns=sample.time_ns, valid_until_ns=sample.time_ns + points * chunk.period_ns,
        positions=sample.position + travelled, velocities=velocities)


def hermite(position: Floats, velocity: Floats, next_position: Floats, next_velocity: Floats,
            span_s: float, elapsed_s: float) -> tuple[Floats, Floats]:
    """Position and velocity after ``elapsed_s`` on the cubic between two states."""
    u = elapsed_s / span_s
    change = next_position - position
    rise = velocity * span_s
    fall = next_velocity * span_s
    at = position + u * (rise + u * (3 * change - 2 * rise - fall + u * (
        rise + fall - 2 * change)))
    speed = (rise + u * (2 * (3 * change - 2 * rise - fall) + u * 3 * (
        rise + fall - 2 * change))) / span_s
    return at, np.asarray(speed)
