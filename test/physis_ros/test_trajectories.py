"""What a joint_trajectory_controller makes of the trajectories it is sent, whatever happens."""

from __future__ import annotations

import time

import numpy as np
import pytest
from graph import NAMES

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from node_bench import Bench
from rclpy.time import Time
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.delivery.chunk import PlannedChunk, finite_difference
from physis_core.delivery.timeline import Timeline
from physis_ros.chunk_messages import way_to_rest
from physis_ros.demo.controller import JointState, Trajectory, TrajectoryFollower

MS = 1_000_000
TRAJECTORIES = '/arm_controller/joint_trajectory'
DECELERATION = 10.0
EARLY_NS, TICK_NS = 20 * MS, 1 * MS


def followed(messages: list[JointTrajectory], seconds: float) -> np.ndarray:
    """Positions [ticks, joints] of a controller with the defaults of joint_trajectory_controller
    that gets each trajectory when the node promises to send it."""
    follower = TrajectoryFollower(NAMES, interpolate_from_desired_state=True)
    at_rest = JointState.at_rest(np.zeros(len(NAMES)))
    pending = [trajectory_of(message) for message in messages]
    begin_ns = pending[0].start_ns - 2 * EARLY_NS
    positions = []
    for now_ns in range(begin_ns, begin_ns + round(seconds * 1e9), TICK_NS):
        while pending and now_ns >= pending[0].start_ns - EARLY_NS:
            follower.accept(pending.pop(0), now_ns)
        positions.append(follower.update(now_ns, at_rest))
    return np.array(positions)


def trajectory_of(message: JointTrajectory) -> Trajectory:
    return Trajectory(
        Time.from_msg(message.header.stamp).nanoseconds, tuple(message.joint_names),
        tuple(point.time_from_start.sec * 10**9 + point.time_from_start.nanosec
              for point in message.points),
        np.array([point.positions for point in message.points]),
        np.array([point.velocities for point in message.points]))


@pytest.mark.parametrize('chunks', [1, 3])
def test_a_controller_comes_to_rest_smoothly_when_no_more_chunks_come(bench: Bench, chunks: int
                                                                      ) -> None:
    """The engine ends, the node hangs, the network breaks: the way to rest is already there."""
    (heard,) = bench.listen((JointTrajectory, TRAJECTORIES))
    due_ns = time.monotonic_ns() + 100 * MS
    for count in range(chunks):
        bench.stream.finish(due_ns=due_ns + 160 * MS * count, start=0.16 * count, speed=1.0)
    bench.graph.wait_for(lambda: len(heard) == chunks, 'all trajectories')
    positions = followed(heard, seconds=2.0)
    end = 0.16 * chunks - 0.02  # of the last control point
    velocities = np.diff(positions, axis=0) / (TICK_NS * 1e-9)
    # From the first point of the last trajectory on: a controller hesitates when one arrives.
    begun = round((2 * EARLY_NS + 160 * MS * (chunks - 1) + 20 * MS) / TICK_NS)
    accelerations = np.diff(velocities[begun:], axis=0) / (TICK_NS * 1e-9)
    assert velocities[begun] == pytest.approx(1.0, abs=1e-3)
    assert np.abs(accelerations).max() <= 2.0 * DECELERATION
    assert not velocities[-1].any()
    assert positions[-1] == pytest.approx(end + 0.5 * 1.0**2 / DECELERATION, abs=1e-3)
    assert positions.max() == pytest.approx(positions[-1].max(), abs=1e-4)  # and not back again


def test_a_chunk_that_ends_at_rest_is_not_made_longer(bench: Bench) -> None:
    (heard,) = bench.listen((JointTrajectory, TRAJECTORIES))
    bench.stream.finish(positions=np.full((8, 6), 0.3))
    bench.graph.wait_for(lambda: heard, 'a trajectory')
    assert len(heard[0].points) == 8


def test_a_very_fast_end_has_a_way_to_rest_of_bounded_length(bench: Bench) -> None:
    (heard,) = bench.listen((JointTrajectory, TRAJECTORIES))
    bench.stream.finish(speed=1000.0)
    bench.graph.wait_for(lambda: heard, 'a trajectory')
    assert len(heard[0].points) < 300
    assert not any(heard[0].points[-1].velocities)


@pytest.mark.parametrize('how', ['reset', 'deactivate'])
def test_a_controller_is_stopped_when_the_plan_is_given_up(bench: Bench, how: str) -> None:
    """It must not go on with an episode that is over."""
    (heard,) = bench.listen((JointTrajectory, TRAJECTORIES))
    reset = bench.service(Trigger, '/wam_node/reset')
    positions = np.repeat(0.001 * np.arange(2000.0)[:, None], 6, 1)  # 0.05 rad/s for 40 s
    bench.stream.finish(due_in_ms=0.0, positions=positions[:8])
    bench.graph.wait_for(lambda: heard, 'a trajectory')
    for count in range(1, 100):  # the plan goes on while the services are slow
        bench.stream.finish(due_in_ms=160.0 * count, positions=positions[8 * count:8 * count + 8])
    bench.graph.spin_for(0.3)
    before = len(heard)
    if how == 'reset':
        assert reset(Trigger.Request()).success
    else:
        bench.node.trigger_deactivate()
    bench.graph.wait_for(lambda: not heard[-1].header.stamp.sec, 'the way to rest')
    rest = heard[-1]
    assert not any(rest.points[-1].velocities)
    assert heard[before - 1].points[0].positions[0] - 0.1 < rest.points[-1].positions[0]
    if how == 'deactivate':
        bench.node.trigger_activate()
    bench.stream.finish(start=0.7)  # the sentinel
    bench.graph.wait_for(lambda: heard[-1] is not rest, 'a trajectory of the new epoch')
    assert heard[-1].points[0].positions[0] == pytest.approx(0.7)
    assert heard.index(rest) == len(heard) - 2


def test_the_way_to_rest_begins_where_the_controller_is() -> None:
    """It follows the points one period behind the plan: it reaches the first one a period late."""
    plan, period_ns, due_ns = Timeline(), 20 * MS, 1000 * MS
    positions = np.repeat(0.02 * np.arange(20.0)[:, None], 2, 1)  # 1 rad/s
    plan.commit(PlannedChunk(1, 0, due_ns, period_ns, due_ns + 20 * period_ns, 0, 0, 0, 0,
                             positions, finite_difference(positions, period_ns)))
    now_ns = due_ns + 100 * MS
    rest = way_to_rest(plan, now_ns, period_ns, EARLY_NS, DECELERATION)
    assert rest is not None
    controller = (now_ns - due_ns - period_ns) * 1e-9
    assert rest.positions[0] == pytest.approx(controller + 0.02 - 0.5 * DECELERATION * 0.02**2)
    assert rest.positions[-1] == pytest.approx(controller + 0.5 / DECELERATION)
    assert way_to_rest(plan, due_ns + 2000 * MS, period_ns, EARLY_NS, DECELERATION) is None
    soon = way_to_rest(plan, due_ns - 10 * MS, period_ns, EARLY_NS, DECELERATION)
    assert soon is not None  # sent and not begun
