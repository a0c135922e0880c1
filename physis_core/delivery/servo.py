"""What the servo commands at one moment: the plan, or the way to rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_core.delivery.chunk import Floats, PlannedChunk
from physis_core.delivery.limits import JointLimits
from physis_core.delivery.ring import ServoState
from physis_core.delivery.timeline import Sample, Timeline, hermite
from physis_core.units import s_from_ns

# Measured joints may be so old; what was measured before the arm rested says nothing about where it
# rests.
_SETTLED_NS = 300_000_000
# A change of plan smaller than this is rounding, not a jump to be smoothed [rad, rad/s].
_SEAMLESS = 1e-9


@dataclass(frozen=True, eq=False)
class Command:
    """One command, ``[joints]`` each, and the chunk that takes effect with it (None: none)."""

    position: Floats
    velocity: Floats
    effective: PlannedChunk | None = None


@dataclass(frozen=True, eq=False)
class _Splice:
    """The difference between command and plan, fading out from ``begin_ns`` over ``span_s``.

    The span is short whatever the difference is: a difference in speed that fades over ``span_s``
    carries the command ``4/27 * span_s * speed`` away from the plan, so a long fade would throw
    the arm off.  Where the limits do not allow a short one, they make the way back longer.
    """

    begin_ns: int
    span_s: float
    offset: Floats
    offset_velocity: Floats

    def at(self, now_ns: int) -> tuple[Floats, Floats] | None:
        """Offset and its velocity; None once it is gone."""
        elapsed_s = s_from_ns(now_ns - self.begin_ns)
        if elapsed_s >= self.span_s:
            return None
        gone = np.zeros_like(self.offset)
        return hermite(self.offset, self.offset_velocity, gone, gone, self.span_s, elapsed_s)


class ServoPlayer:
    """Turns chunks into commands whose position and velocity are continuous.

    Where the plan jumps (a new chunk disagrees with the old one, or it begins again after a hold)
    the difference to what was commanded last fades out; where there is no plan, joints decelerate
    and hold.  Time is an argument: the caller owns the clock.
    """

    def __init__(self, limits: JointLimits, splice_s: float, restart_tolerance: float,
                 tick_s: float) -> None:
        """Make a player that is idle.

        Args:
            limits: kept on every command.
            splice_s: time in which a jump of the plan fades out, as far as limits allow [s].
            restart_tolerance: a resting arm that is found further than this from its last command
                was moved by somebody: the next epoch starts where it is [rad].
            tick_s: planned time between steps [s]; missed ones make no command step longer.
        """
        self._limits = limits
        self._splice_s = splice_s
        self._restart_tolerance = restart_tolerance
        self._tick_s = tick_s
        self._timeline = Timeline()
        self._pending: list[PlannedChunk] = []
        self._measured: Floats | None = None
        self._position: Floats | None = None
        self._velocity = np.zeros_like(limits.lower)
        self._last_ns = 0
        self._moved_ns = 0
        self._splice: _Splice | None = None
        self._effective: PlannedChunk | None = None
        self._towards: PlannedChunk | None = None
        self.epoch = 0
        self.state = ServoState.IDLE
        self.stop_reason = ''
        self.played = 0
        self.underruns = 0
        self.limited = 0

    @property
    def position(self) -> Floats | None:
        """The last commanded positions; None before the first command."""
        return self._position

    @property
    def velocity(self) -> Floats:
        """The last commanded velocities."""
        return self._velocity

    @property
    def planned_points(self) -> int:
        """Control points that are kept, played or to come."""
        return len(self._timeline)

    def planned(self, time_ns: int) -> Floats | None:
        """Where the plan, as of the last step, has the joints at a time; None: nowhere."""
        sample = self._timeline.sample(time_ns)
        return None if sample is None else sample.position

    def accept(self, chunk: PlannedChunk, measured: Floats) -> None:
        """Take a chunk, to be planned at the next step; one of another epoch is ignored.

        ``measured`` says where the joints are or lately were (NaN: unknown); see
        ``restart_tolerance``.
        """
        if chunk.epoch == self.epoch and self.state is not ServoState.STOPPED:
            self._pending.append(chunk)
            settled = (self._position is None
                       or self._last_ns - self._moved_ns >= _SETTLED_NS)
            self._measured = measured if settled and np.isfinite(measured).all() else None

    def begin_epoch(self, epoch: int) -> None:
        """Forget every plan and every stop: joints come to rest and wait for a new chunk."""
        self._forget_plans()
        self.epoch = epoch
        self.stop_reason = ''
        self.state = ServoState.IDLE

    def stop(self, reason: str) -> None:
        """Come to rest and stay there until :meth:`begin_epoch`."""
        self._forget_plans()
        self.stop_reason = reason
        self.state = ServoState.STOPPED

    def step(self, now_ns: int) -> Command | None:
        """The command for ``now_ns``, which is later than at the step before.

        None where there is nothing to say: before the first chunk, and after a reset once the
        joints rest (holding on would fight whoever moves the arm meanwhile).
        """
        elapsed_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        if self._velocity.any():
            self._moved_ns = now_ns
        changed = self._commit_pending(now_ns)
        sample = self._timeline.sample(now_ns)
        if sample is None:
            return self._rest(s_from_ns(elapsed_ns))
        if self.state is ServoState.IDLE:
            self._start(sample)
        position, velocity = self._position, self._velocity
        assert position is not None  # _start sets it
        elapsed_s = s_from_ns(elapsed_ns)
        begins = sample.chunk is not self._effective
        jumps = begins and sample.chunk is not self._towards  # nothing led to its first point
        if changed or jumps or self.state is not ServoState.PLAYING:
            moved = position + velocity * elapsed_s if velocity.any() else position
            self._splice = self._new_splice(moved - sample.position,
                                            velocity - sample.velocity, now_ns)
        self.state = ServoState.PLAYING
        self.played += 1
        command = self._follow(sample, position, now_ns, elapsed_s)
        self._effective, self._towards = sample.chunk, sample.towards
        return Command(*command, sample.chunk if begins else None)

    def _forget_plans(self) -> None:
        self._timeline.clear()
        self._pending.clear()
        self._measured = None
        self._splice = None
        self._effective = self._towards = None

    def _commit_pending(self, now_ns: int) -> bool:
        """Plan what has come; whether that changed the plan for now."""
        self._timeline.forget_before(now_ns)
        if not self._pending:
            return False
        before = self._timeline.sample(now_ns)
        for chunk in self._pending:
            self._timeline.commit(chunk)
        self._pending.clear()
        after = self._timeline.sample(now_ns)
        if before is None or after is None:
            return after is not None
        return _jumps(after.position - before.position, after.velocity - before.velocity)

    def _start(self, sample: Sample) -> None:
        """Decide where the first command of an epoch starts from."""
        measured = self._measured
        if measured is None:
            # Without a measurement the plan's own begin is the best guess of where the arm is.
            measured = sample.position if self._position is None else self._position
        if self._position is None or (not self._velocity.any() and (
                np.abs(measured - self._position) > self._restart_tolerance).any()):
            self._position = measured

    def _new_splice(self, offset: Floats, offset_velocity: Floats, now_ns: int) -> _Splice | None:
        if not _jumps(offset, offset_velocity):
            return None
        return _Splice(now_ns, self._splice_s, offset, offset_velocity)

    def _follow(self, sample: Sample, position: Floats, now_ns: int, elapsed_s: float
                ) -> tuple[Floats, Floats]:
        wanted, wanted_velocity = sample.position, sample.velocity
        fading = None if self._splice is None else self._splice.at(now_ns)
        if fading is None:
            self._splice = None
        else:
            wanted, wanted_velocity = wanted + fading[0], wanted_velocity + fading[1]
        self._position, self._velocity, limited = self._limits.apply(
            position, self._velocity, wanted, wanted_velocity, elapsed_s, self._tick_s)
        self.limited += limited
        return self._position, self._velocity

    def _rest(self, elapsed_s: float) -> Command | None:
        if self.state is ServoState.PLAYING:
            self.state = ServoState.HOLDING
            self.underruns += 1
        if self._position is None or (self.state is ServoState.IDLE and not self._velocity.any()):
            return None
        self._effective = self._towards = None
        self._splice = None
        self._position, self._velocity = self._limits.brake(
            self._position, self._velocity, min(elapsed_s, self._tick_s))
        return Command(self._position, self._velocity)


def _jumps(offset: Floats, offset_velocity: Floats) -> bool:
    return bool((np.abs(offset) > _SEAMLESS).any() or (np.abs(offset_velocity) > _SEAMLESS).any())
