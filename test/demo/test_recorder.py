"""The recorder joins what the sender says with what the controller did, on a real graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip('rclpy', reason='needs the extra `ros`')
pytest.importorskip('physis_ros.demo.scene', reason='needs the extra `demo`')

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.executors import SingleThreadedExecutor
from rclpy.time import Time
from sensor_msgs.msg import Image, JointState, TimeReference
from std_msgs.msg import Float64MultiArray

from physis_ros.demo.recorder import Recorder
from physis_ros.demo.recording import EpisodeSeen, Recording
from physis_ros.demo.scene import JOINT_NAMES
from physis_ros.msg import ActionChunk

MS = 1_000_000
WAIT_S = 30.0


def stamp(time_ns: int) -> Any:
    return Time(nanoseconds=time_ns).to_msg()


class Robot:
    """Publishes what the demo's processes would."""

    def __init__(self, trajectories: bool) -> None:
        rclpy.init()
        self.node = rclpy.create_node('robot')
        self.recorder = Recorder(Recording(), trajectories)
        self._executor = SingleThreadedExecutor()
        for node in (self.node, self.recorder):
            self._executor.add_node(node)
        self._publishers: dict[str, Any] = {}

    def publish(self, topic: str, message: Any) -> None:
        if topic not in self._publishers:
            publisher = self.node.create_publisher(type(message), topic, 10)
            self._publishers[topic] = publisher
            self.until(publisher.get_subscription_count, topic)
        self._publishers[topic].publish(message)

    def event(self, what: str, planned_ns: int, time_ns: int) -> None:
        message = TimeReference(source=what, time_ref=stamp(planned_ns))
        message.header.stamp = stamp(time_ns)
        self.publish('/arm_controller/trajectory_events', message)

    def chunk(self, number: int, planned_ns: int) -> None:
        message = ActionChunk(
            epoch=3, chunk_id=number, capture_stamp=stamp(planned_ns - 150 * MS),
            age_capture_s=0.01, age_queue_s=0.02, age_response_s=0.03, on_time=True)
        message.header.stamp = stamp(planned_ns)
        self.publish('/wam_node/action_chunk', message)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f'waited in vain for {what}'
            self._executor.spin_once(timeout_sec=0.05)


@pytest.fixture(params=[True])
def robot(request: pytest.FixtureRequest) -> Iterator[Robot]:
    robot = Robot(request.param)
    yield robot
    robot.recorder.destroy_node()
    robot.node.destroy_node()
    rclpy.shutdown()


@pytest.mark.parametrize('early', [True, False], ids=['events first', 'chunk first'])
def test_events_find_their_chunk_in_any_order(robot: Robot, early: bool) -> None:
    planned_ns = robot.recorder.now_ns()
    chunks = robot.recorder.recording.chunks

    def events() -> None:
        # The two stamps of one plan may differ by the drift of a clock.
        robot.event('received', planned_ns + 2000, planned_ns - 5 * MS)
        robot.event('started', planned_ns + 2000, planned_ns + 3 * MS)

    if early:
        events()
        robot.until(lambda: len(robot.recorder._early_events) == 2, 'the events')
    robot.chunk(7, planned_ns)
    robot.until(lambda: chunks, 'the chunk')
    if not early:
        events()
    seen = chunks[3, 7]
    robot.until(lambda: seen.effect_ns, 'the effect')
    assert seen.arrived_ns == planned_ns - 5 * MS
    assert seen.on_time
    assert seen.age_s == pytest.approx(0.153)
    assert seen.handoff_s == pytest.approx(0.153 - 0.06)


def test_a_rejected_chunk_is_not_on_time(robot: Robot) -> None:
    planned_ns = robot.recorder.now_ns()
    robot.chunk(0, planned_ns)
    robot.event('received', planned_ns, planned_ns - 5 * MS)
    robot.event('rejected', planned_ns, planned_ns - 5 * MS)
    chunks = robot.recorder.recording.chunks
    robot.until(lambda: chunks and chunks[3, 0].rejected, 'the rejection')
    assert not chunks[3, 0].on_time


@pytest.mark.parametrize('robot', [False], indirect=True)
def test_with_the_servo_in_charge_its_first_command_after_the_plan_is_the_effect(robot: Robot
                                                                                 ) -> None:
    chunks = robot.recorder.recording.chunks
    planned_ns = robot.recorder.now_ns() + 300 * MS
    robot.chunk(0, planned_ns)
    robot.until(lambda: chunks, 'the chunk')
    seen = chunks[3, 0]
    assert seen.arrived_ns is not None and seen.on_time

    def commanded() -> bool:
        robot.publish('/arm_controller/commands', Float64MultiArray(data=[0.0] * 6))
        return seen.effect_ns is not None

    robot.until(commanded, 'the effect')
    assert seen.effect_ns is not None
    assert planned_ns <= seen.effect_ns < robot.recorder.now_ns()
    assert seen.effect_ns in robot.recorder.recording.servo


def test_sensors_are_counted_by_source_and_frames_kept_in_episodes(robot: Robot) -> None:
    recording = robot.recorder.recording
    recording.episodes.append(EpisodeSeen(0, 0, robot.recorder.now_ns()))
    image = Image(height=2, width=2, encoding='rgb8', step=6, data=bytes(range(12)))
    joints = JointState(name=list(reversed(JOINT_NAMES)), position=[5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    for _ in range(3):
        robot.publish('/camera/front/image_raw', image)
        robot.publish('/joint_states', joints)
    robot.until(lambda: len(recording.measured) == 3, 'joint states')
    robot.until(lambda: len(recording.sensors.get('front', ())) == 3, 'images')
    assert set(recording.sensors) == {'front', 'joint_states'}
    assert recording.measured[-1][1] == (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert len(recording.episodes[0].frames) == 1  # about two a second
    assert recording.episodes[0].frames[0][1][1, 1].tolist() == [9, 10, 11]


def test_the_task_is_told_apart_from_other_statuses(robot: Robot) -> None:
    robot.publish('/so101/task', DiagnosticStatus(name='something else'))
    robot.publish('/so101/task', DiagnosticStatus(
        name='so101: task', values=[KeyValue(key='episode', value='4')]))
    robot.until(lambda: robot.recorder.task, 'the task')
    assert robot.recorder.task == {'episode': '4'}
