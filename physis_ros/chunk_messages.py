"""Delivered chunks as messages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from builtin_interfaces.msg import Duration
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_core.delivery.chunk import PlannedChunk
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


def stop_trajectory(rest: PlannedChunk, joints: Sequence[str]) -> JointTrajectory:
    """A way to rest for a joint_trajectory_controller; stamp 0: it starts when it arrives."""
    message = JointTrajectory(joint_names=list(joints))
    message.points = [_point(rest, point, at_rest=False) for point in range(rest.points)]
    return message


def joint_trajectory(chunk: PlannedChunk, joints: Sequence[str], times: SteadyTime,
                     end_at_rest: bool) -> JointTrajectory:
    """The chunk for a joint_trajectory_controller: it starts at the planned time.

    Point i is reached at ``(i + 1) * period`` after the start, so times increase strictly and none
    is zero.  With ``end_at_rest`` the last point has no velocity, for controllers that do not
    allow one at the end of a trajectory.
    """
    message = JointTrajectory(joint_names=list(joints))
    message.header.stamp = times.stamp(chunk.due_ns)
    message.points = [
        _point(chunk, point, at_rest=end_at_rest and point == chunk.points - 1)
        for point in range(chunk.points)]
    return message


def _point(chunk: PlannedChunk, point: int, at_rest: bool) -> JointTrajectoryPoint:
    velocities = chunk.velocities[point].tobytes()
    return JointTrajectoryPoint(
        positions=array('d', chunk.positions[point].tobytes()),
        velocities=array('d', bytes(len(velocities)) if at_rest else velocities),
        time_from_start=_duration((point + 1) * chunk.period_ns))


def _duration(nanoseconds: int) -> Duration:
    return Duration(sec=nanoseconds // NS_PER_S, nanosec=nanoseconds % NS_PER_S)
