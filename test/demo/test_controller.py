"""The controller follows trajectories as joint_trajectory_controller does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from physis_core.errors import InputError
from physis_ros.demo.controller import (
    CommandForwarder,
    JointState,
    Trajectory,
    TrajectoryFollower,
)

JOINTS = ('a', 'b')
MS = 1_000_000
NOW = 1_000_000 * MS
AT_ZERO = JointState.at_rest(np.zeros(2))


def trajectory(start_ns: int = 0, positions: Any = ((1.0, 2.0), (3.0, 4.0)),
               velocities: Any = None, times_ms: Any = (20, 40), joints: Any = JOINTS
               ) -> Trajectory:
    return Trajectory(start_ns, tuple(joints), tuple(time * MS for time in times_ms),
                      np.array(positions, dtype=float),
                      None if velocities is None else np.array(velocities, dtype=float))


@pytest.fixture
def follower() -> TrajectoryFollower:
    return TrajectoryFollower(JOINTS, interpolate_from_desired_state=True,
                              allow_nonzero_velocity_at_trajectory_end=True)


def test_without_a_trajectory_it_holds_where_the_arm_was_measured(follower: TrajectoryFollower
                                                                  ) -> None:
    measured = JointState(np.array([0.3, -0.2]), np.array([1.0, 1.0]))
    assert follower.update(NOW, measured).tolist() == [0.3, -0.2]
    assert follower.update(NOW + MS, AT_ZERO).tolist() == [0.3, -0.2]


def test_a_zero_stamp_starts_at_the_first_update(follower: TrajectoryFollower) -> None:
    follower.update(NOW, AT_ZERO)
    follower.accept(trajectory(), NOW)
    follower.update(NOW + 7 * MS, AT_ZERO)
    assert follower.newly_started(NOW + 7 * MS)
    assert follower.update(NOW + 17 * MS, AT_ZERO) == pytest.approx([0.5, 1.0])
    assert follower.update(NOW + 27 * MS, AT_ZERO) == pytest.approx([1.0, 2.0])
    assert follower.update(NOW + 37 * MS, AT_ZERO) == pytest.approx([2.0, 3.0])


def test_the_last_point_is_held(follower: TrajectoryFollower) -> None:
    follower.accept(trajectory(NOW), NOW)
    for later_ms in (40, 41, 4000):
        assert follower.update(NOW + later_ms * MS, AT_ZERO).tolist() == [3.0, 4.0]


def test_points_of_the_past_are_left_out(follower: TrajectoryFollower) -> None:
    follower.update(NOW, AT_ZERO)
    follower.accept(trajectory(NOW - 30 * MS), NOW)
    assert follower.update(NOW, AT_ZERO) == pytest.approx([2.0, 3.0])
    assert follower.update(NOW + 10 * MS, AT_ZERO) == pytest.approx([3.0, 4.0])


def test_a_trajectory_that_is_over_is_refused_and_the_old_one_goes_on(
        follower: TrajectoryFollower) -> None:
    follower.accept(trajectory(NOW), NOW)
    follower.update(NOW, AT_ZERO)
    with pytest.raises(InputError, match=r'ended 10\.0 ms ago'):
        follower.accept(trajectory(NOW - 50 * MS, ((9.0, 9.0), (9.0, 9.0))), NOW)
    assert follower.update(NOW + 20 * MS, AT_ZERO) == pytest.approx([1.0, 2.0])


def test_a_new_trajectory_replaces_the_old_one_at_once(follower: TrajectoryFollower) -> None:
    """Also one that starts later: until then the arm moves towards its first point."""
    follower.accept(trajectory(NOW), NOW)
    follower.update(NOW, AT_ZERO)
    assert follower.update(NOW + 20 * MS, AT_ZERO) == pytest.approx([1.0, 2.0])
    follower.accept(trajectory(NOW + 40 * MS, ((5.0, 6.0), (7.0, 8.0))), NOW + 20 * MS)
    assert follower.update(NOW + 20 * MS, AT_ZERO) == pytest.approx([1.0, 2.0])
    assert not follower.newly_started(NOW + 20 * MS)
    assert follower.update(NOW + 40 * MS, AT_ZERO) == pytest.approx([3.0, 4.0])
    assert follower.newly_started(NOW + 40 * MS)
    assert not follower.newly_started(NOW + 41 * MS)
    assert follower.update(NOW + 60 * MS, AT_ZERO) == pytest.approx([5.0, 6.0])


def test_it_starts_from_the_desired_state_or_from_the_measured_one() -> None:
    measured = JointState(np.array([0.5, 0.5]), np.zeros(2))
    for from_desired, expected in ((True, [2.0, 3.0]), (False, [0.5, 0.5])):
        follower = TrajectoryFollower(JOINTS, interpolate_from_desired_state=from_desired)
        follower.hold(np.array([2.0, 3.0]))
        follower.accept(trajectory(NOW + 40 * MS), NOW + 40 * MS)
        assert follower.update(NOW + 40 * MS, measured).tolist() == expected


def test_velocities_make_cubics_that_pass_through_the_points(follower: TrajectoryFollower) -> None:
    follower.hold(np.zeros(2))
    follower.accept(trajectory(NOW, ((0.1, 0.0), (0.3, 0.0)), ((10.0, 0.0), (10.0, 0.0))), NOW)
    times = range(41)
    path = np.array([follower.update(NOW + time * MS, AT_ZERO)[0] for time in times])
    assert path[20] == pytest.approx(0.1) and path[40] == pytest.approx(0.3)
    speed = np.diff(path) / 1e-3
    assert abs(speed[0]) < 1.0  # begins at rest
    assert speed[19] == pytest.approx(10.0, abs=1.5)
    assert np.abs(np.diff(speed)).max() < 2.0  # and never jumps


def test_columns_are_matched_by_name(follower: TrajectoryFollower) -> None:
    follower.accept(trajectory(NOW, joints=('b', 'a')), NOW)
    assert follower.update(NOW + 40 * MS, AT_ZERO).tolist() == [4.0, 3.0]


@pytest.mark.parametrize(('bad', 'text'), [
    ({'joints': ('a', 'c')}, r"unknown \['c'\], missing \['b'\]"),
    ({'times_ms': (20, 20)}, 'increases strictly'),
    ({'positions': np.zeros((0, 2)), 'times_ms': ()}, 'no points'),
    ({'positions': ((1.0, np.nan), (3.0, 4.0))}, 'not finite'),
    ({'positions': ((1.0,), (3.0,))}, r'not \(2, 2\)'),
    ({'velocities': ((1.0, 1.0),)}, r'velocities are \(1, 2\)'),
])
def test_what_is_wrong_is_refused_by_name(follower: TrajectoryFollower, bad: dict[str, Any],
                                          text: str) -> None:
    with pytest.raises(InputError, match=text):
        follower.accept(trajectory(NOW, **bad), NOW)
    assert follower.holding


def test_ending_in_motion_must_be_allowed() -> None:
    strict = TrajectoryFollower(JOINTS)
    moving = trajectory(NOW, velocities=((0.0, 0.0), (1.0, 0.0)))
    with pytest.raises(InputError, match='allow_nonzero_velocity_at_trajectory_end'):
        strict.accept(moving, NOW)


def test_the_time_out_counts_from_the_last_point() -> None:
    follower = TrajectoryFollower(JOINTS, cmd_timeout_s=0.1)
    follower.accept(trajectory(NOW), NOW)
    follower.update(NOW + 139 * MS, AT_ZERO)
    assert not follower.holding
    assert follower.update(NOW + 141 * MS, AT_ZERO).tolist() == [3.0, 4.0]
    assert follower.holding


def test_forgetting_means_holding_where_the_arm_is_then(follower: TrajectoryFollower) -> None:
    follower.accept(trajectory(NOW), NOW)
    follower.update(NOW + 40 * MS, AT_ZERO)
    follower.forget()
    assert follower.update(NOW + 41 * MS, AT_ZERO).tolist() == [0.0, 0.0]


def test_commands_are_forwarded_and_silence_is_noticed() -> None:
    forwarder = CommandForwarder(JOINTS, 0.1)
    assert forwarder.silent(NOW)
    forwarder.accept([1.0, 2.0], NOW)
    assert forwarder.update(AT_ZERO).tolist() == [1.0, 2.0]
    assert not forwarder.silent(NOW + 99 * MS)
    assert forwarder.silent(NOW + 101 * MS)
    assert forwarder.update(AT_ZERO).tolist() == [1.0, 2.0]


@pytest.mark.parametrize('bad', [[1.0], [1.0, 2.0, 3.0], [1.0, float('nan')]])
def test_bad_commands_are_dropped(bad: list[float]) -> None:
    forwarder = CommandForwarder(JOINTS, 0.1)
    forwarder.accept([1.0, 2.0], NOW)
    with pytest.raises(InputError):
        forwarder.accept(bad, NOW)
    assert forwarder.update(AT_ZERO).tolist() == [1.0, 2.0]
