"""What a position controller does with the commands it is given; no ROS in here.

:class:`TrajectoryFollower` has the semantics of joint_trajectory_controller, and
:class:`CommandForwarder` those of forward_command_controller with a watchdog. Times are
nanoseconds of the clock that stamps the messages (the ROS clock), angles radians.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physis_core.errors import InputError
from physis_core.units import NS_PER_S, ms_from_ns

Array = NDArray[np.float64]
_STANDSTILL_RAD_S = 1e-6


@dataclass(frozen=True)
class JointState:
    """Positions [rad] and velocities [rad/s] of all joints, in the controller's order."""

    positions: Array
    velocities: Array

    @classmethod
    def at_rest(cls, positions: Array) -> JointState:
        """The state that stands still at `positions`."""
        return cls(positions, np.zeros_like(positions))


@dataclass(frozen=True)
class Trajectory:
    """A trajectory message as it came in.

    Attributes:
        start_ns: time that `times_ns` count from; 0: the moment it is first played.
        joint_names: names of the columns.
        times_ns: `time_from_start` of every point.
        positions: `[points, joints]`.
        velocities: `[points, joints]`; None: straight lines between the positions.
    """

    start_ns: int
    joint_names: tuple[str, ...]
    times_ns: tuple[int, ...]
    positions: Array
    velocities: Array | None


class TrajectoryFollower:
    """Follows one trajectory at a time; a new one replaces it at once.

    Until the first point of the new trajectory is due, the arm moves there from the state it is in
    (the desired one with `interpolate_from_desired_state`, else the measured one). One that has
    begun already is followed from where it is by now. After the last point the arm stays there.
    """

    def __init__(self, joint_names: Sequence[str], *,
                 interpolate_from_desired_state: bool = False,
                 allow_nonzero_velocity_at_trajectory_end: bool = False,
                 cmd_timeout_s: float = 0.0) -> None:
        """`cmd_timeout_s` counts from the last point; 0: never."""
        self._joints = tuple(joint_names)
        self._from_desired = interpolate_from_desired_state
        self._may_end_moving = allow_nonzero_velocity_at_trajectory_end
        self._timeout_ns = round(cmd_timeout_s * NS_PER_S)
        self._desired: JointState | None = None
        self._trajectory: Trajectory | None = None
        self._start_ns = 0
        self._before_ns = 0
        self._before: JointState | None = None
        self._announced = True

    @property
    def holding(self) -> bool:
        """Whether there is no trajectory to follow."""
        return self._trajectory is None

    def forget(self) -> None:
        """Forget everything: the next update holds the arm where it is measured to be."""
        self._trajectory = self._desired = None
        self._announced = True

    def hold(self, positions: Array) -> None:
        """Forget the trajectory and stand still at `positions` `[joints]`."""
        self._trajectory = None
        self._announced = True
        self._desired = JointState.at_rest(np.asarray(positions, dtype=np.float64))

    def accept(self, trajectory: Trajectory, now_ns: int) -> None:
        """Follow `trajectory` from the next update on.

        Raises:
            InputError: it is refused as a whole, and the current one goes on.
        """
        self._trajectory = self._in_own_order(self._checked(trajectory, now_ns))
        self._start_ns = trajectory.start_ns
        self._before = None
        self._announced = False

    def update(self, now_ns: int, measured: JointState) -> Array:
        """The position command `[joints]` for now; `measured` is the state of the arm."""
        if self._desired is None:
            self._desired = JointState.at_rest(measured.positions)
        if self._trajectory is not None:
            if self._before is None:
                self._begin(now_ns, measured)
            self._desired = self._sample(self._trajectory, now_ns)
            self._time_out(self._trajectory, self._desired, now_ns)
        return self._desired.positions

    def newly_started(self, now_ns: int) -> bool:
        """True once per trajectory: at the first update at or after its planned start."""
        if self._announced or self._before is None or now_ns < self._start_ns:
            return False
        self._announced = True
        return True

    def _checked(self, trajectory: Trajectory, now_ns: int) -> Trajectory:
        _check_names(trajectory.joint_names, self._joints)
        _check_times(trajectory.times_ns)
        _check_values('positions', trajectory.positions, trajectory)
        if trajectory.velocities is not None:
            _check_values('velocities', trajectory.velocities, trajectory)
            fastest = float(np.abs(trajectory.velocities[-1]).max())
            if fastest > _STANDSTILL_RAD_S and not self._may_end_moving:
                raise InputError(
                    f'the last point moves at {fastest:.3g} rad/s; end at rest, or set '
                    'allow_nonzero_velocity_at_trajectory_end')
        end_ns = trajectory.start_ns + trajectory.times_ns[-1]
        if trajectory.start_ns and end_ns < now_ns:
            raise InputError(
                f'it ended {ms_from_ns(now_ns - end_ns):.1f} ms ago; stamp it with its planned '
                'start, or with 0 for "now"')
        return trajectory

    def _in_own_order(self, trajectory: Trajectory) -> Trajectory:
        columns = [trajectory.joint_names.index(name) for name in self._joints]
        velocities = trajectory.velocities
        return Trajectory(
            trajectory.start_ns, self._joints, trajectory.times_ns,
            trajectory.positions[:, columns],
            None if velocities is None else velocities[:, columns])

    def _begin(self, now_ns: int, measured: JointState) -> None:
        self._start_ns = self._start_ns or now_ns
        self._before_ns = now_ns
        self._before = (self._desired if self._from_desired else None) or measured

    def _sample(self, trajectory: Trajectory, now_ns: int) -> JointState:
        assert self._before is not None
        elapsed_ns = now_ns - self._start_ns
        following = int(np.searchsorted(trajectory.times_ns, elapsed_ns, side='right'))
        if following == len(trajectory.times_ns):
            return JointState.at_rest(trajectory.positions[-1])
        last = _point(trajectory, following)
        if following == 0:
            begin: _Point = (self._before.positions, self._before.velocities)
            first_ns = self._before_ns - self._start_ns
        else:
            begin, first_ns = _point(trajectory, following - 1), trajectory.times_ns[following - 1]
        return _interpolate(begin, last, (elapsed_ns - first_ns) / NS_PER_S,
                            (trajectory.times_ns[following] - first_ns) / NS_PER_S)

    def _time_out(self, trajectory: Trajectory, desired: JointState, now_ns: int) -> None:
        silent_ns = now_ns - (self._start_ns + trajectory.times_ns[-1])
        if self._timeout_ns and silent_ns > self._timeout_ns:
            self.hold(desired.positions)


class CommandForwarder:
    """Passes the latest command on. Without one for `watchdog_timeout_s`, it reports silence.

    A position command that is repeated holds the arm still; what the watchdog adds over
    forward_command_controller is that a dead sender does not go unnoticed.
    """

    def __init__(self, joint_names: Sequence[str], watchdog_timeout_s: float) -> None:
        self._joints = tuple(joint_names)
        self._timeout_ns = round(watchdog_timeout_s * NS_PER_S)
        self._command: Array | None = None
        self._received_ns = 0

    def forget(self) -> None:
        """Forget the command: the next update holds the arm where it is measured to be."""
        self._command = None
        self._received_ns = 0

    def accept(self, command: Sequence[float], now_ns: int) -> None:
        """Take over `command`.

        Raises:
            InputError: wrong size or not finite; the previous command stays.
        """
        values = np.array(command, dtype=np.float64)
        if values.shape != (len(self._joints),):
            raise InputError(f'the command has {values.size} values for {len(self._joints)} '
                             f'joints; send them in the order {", ".join(self._joints)}')
        if not np.isfinite(values).all():
            raise InputError(f'the command {values.tolist()} is not finite; it is dropped')
        self._command = values
        self._received_ns = now_ns

    def update(self, measured: JointState) -> Array:
        """The position command `[joints]` for now."""
        if self._command is None:
            self._command = measured.positions
        return self._command

    def silent(self, now_ns: int) -> bool:
        """Whether the sender has been quiet for longer than the watchdog allows."""
        return now_ns - self._received_ns > self._timeout_ns


def _check_names(given: Sequence[str], wanted: Sequence[str]) -> None:
    unknown = [name for name in given if name not in wanted]
    missing = [name for name in wanted if name not in given]
    if unknown or missing or len(given) != len(wanted):
        raise InputError(
            f'joints {list(given)}: unknown {unknown}, missing {missing}; name each of '
            f'{list(wanted)} once')


def _check_times(times_ns: Sequence[int]) -> None:
    if not times_ns:
        raise InputError('it has no points; send at least 1')
    for index, (earlier, later) in enumerate(itertools.pairwise(times_ns)):
        if later <= earlier:
            raise InputError(
                f'time_from_start of point {index + 1} ({ms_from_ns(later):.1f} ms) is not after '
                f'that of point {index} ({ms_from_ns(earlier):.1f} ms); it increases strictly')


def _check_values(what: str, values: Array, trajectory: Trajectory) -> None:
    shape = (len(trajectory.times_ns), len(trajectory.joint_names))
    if values.shape != shape:
        raise InputError(f'{what} are {values.shape}, not {shape} (points, joints)')
    if not np.isfinite(values).all():
        raise InputError(f'{what} hold values that are not finite; the trajectory is dropped')


_Point = tuple[Array, Array | None]


def _point(trajectory: Trajectory, index: int) -> _Point:
    velocities = trajectory.velocities
    return trajectory.positions[index], None if velocities is None else velocities[index]


def _interpolate(begin: _Point, end: _Point, elapsed_s: float, duration_s: float) -> JointState:
    """Cubic through positions and velocities, or a line where velocities are missing."""
    (p0, v0), (p1, v1) = begin, end
    if duration_s <= 0.0:
        return JointState(p1, np.zeros_like(p1) if v1 is None else v1)
    if v0 is None or v1 is None:
        slope = (p1 - p0) / duration_s
        return JointState(p0 + slope * elapsed_s, slope)
    x = elapsed_s / duration_s
    m0, m1, rise = v0 * duration_s, v1 * duration_s, p1 - p0
    square = 3.0 * rise - 2.0 * m0 - m1
    cube = m0 + m1 - 2.0 * rise
    return JointState(p0 + x * (m0 + x * (square + x * cube)),
                      (m0 + x * (2.0 * square + x * 3.0 * cube)) / duration_s)
