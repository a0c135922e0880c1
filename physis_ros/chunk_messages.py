"""Delivered chunks as messages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from builtin_interfaces.msg import Duration
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_core.delivery.chunk import PlannedChunk
from physis_core.delivery.timeline import Sample, Timeline, braking
from physis_core.units import NS_PER_S, s_from_ns
from physis_ros.msg import ActionChunk
from physis_ros.steady_time import SteadyTime


def action_chunk(chunk: PlannedChunk, stream_id: str, joints: Sequence[str], times: SteadyTime
                 ) -> ActionChunk:
    """The chunk with everything that is known about it."""
    age = chunk.age_at(max(chunk.due_ns, chunk.finished_ns))
    message = ActionChunk(
        stream_id=stream_id, chunk_id=chunk.chunk, epoch=chunk.epoch,
        capture_stamp=times.stamp(chunk.capture_ns), period=_duration(chunk.period_ns),
        valid_until=times.stamp(chunk.valid_until_ns), joint_names=list(joints),
        horizon=chunk.points,
        # An array of doubles is taken as it is; a list would be checked item by item.
        positions=array('d', chunk.positions.tobytes()),
        velocities=array('d', chunk.velocities.tobytes()),
        age_capture_s=s_from_ns(age.capture_ns), age_queue_s=s_from_ns(age.queue_ns),
        age_response_s=s_from_ns(age.response_ns), age_handoff_s=s_from_ns(age.handoff_ns),
        on_time=chunk.on_time)
    message.header.stamp = times.stamp(chunk.due_ns)
    return message


def joint_trajectory(chunk: PlannedChunk, joints: Sequence[str], times: SteadyTime,
                     deceleration: float) -> JointTrajectory:
    """The chunk for a joint_trajectory_controller: it starts at the planned time.

    Point i is reached at ``(i + 1) * period`` after the start, so times increase strictly and none
    is zero.  Where the chunk ends in motion, the way to rest follows with ``deceleration``
    [rad/s^2]: it is only played if no other trajectory comes in time, whatever the reason, and it
    is already there then.
    """
    message = JointTrajectory(joint_names=list(joints))
    message.header.stamp = times.stamp(chunk.due_ns)
    message.points = _points(chunk, after=0)
    last = Sample(chunk.time_ns(chunk.points - 1), chunk.positions[-1], chunk.velocities[-1],
                  chunk, chunk)
    if last.velocity.any():
        message.points += _points(braking(chunk, last, deceleration), after=chunk.points)
    return message


def way_to_rest(plan: Timeline, now_ns: int, period_ns: int, early_ns: int, deceleration: float
                ) -> PlannedChunk | None:
    """How to stop a controller that follows trajectories of a plan; None: it does not move.

    Args:
        plan: whose trajectories it has.
        now_ns: the moment.
        period_ns: between two points; a trajectory is that much behind the plan.
        early_ns: how long before its start a trajectory is sent; one that has not begun must be
            taken back too.
        deceleration: of every joint [rad/s^2].
    """
    sample = plan.sample(now_ns - period_ns) or plan.sample(now_ns + early_ns)
    return None if sample is None else braking(sample.chunk, sample, deceleration)


def stop_trajectory(rest: PlannedChunk, joints: Sequence[str]) -> JointTrajectory:
    """A way to rest for a joint_trajectory_controller; stamp 0: it starts when it arrives."""
    return JointTrajectory(joint_names=list(joints), points=_points(rest, after=0))


def _points(chunk: PlannedChunk, after: int) -> list[JointTrajectoryPoint]:
    """All points of a chunk that begins ``after`` so many periods."""
    return [JointTrajectoryPoint(
        positions=array('d', chunk.positions[point].tobytes()),
        velocities=array('d', chunk.velocities[point].tobytes()),
        time_from_start=_duration((after + point + 1) * chunk.period_ns))
        for point in range(chunk.points)]


def _duration(nanoseconds: int) -> Duration:
    return Duration(sec=nanoseconds // NS_PER_S, nanosec=nanoseconds % NS_PER_S)
