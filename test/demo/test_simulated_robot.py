"""The simulated robot and its controller as processes, on a real graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='needs the extra `ros`')
pytest.importorskip('physis_ros.demo.scene', reason='needs the extra `demo`')

import rclpy
from builtin_interfaces.msg import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.time import Time
from sensor_msgs.msg import Image, JointState, TimeReference
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.demo.private_domain import PrivateDomain
from physis_ros.demo.processes import ProcessGroup
from physis_ros.demo.scene import JOINT_NAMES
from physis_ros.deployment import dds_environment, simulated_robot_processes

WAIT_S = 30.0
SEED = 40


class Observer(Node):
    """Keeps what came last, and counts it."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__('observer', context=context)
        self.images: dict[str, list[Image]] = {'front': [], 'wrist': []}
        self.joints: list[JointState] = []
        self.events: list[str] = []
        for camera, images in self.images.items():
            self.create_subscription(Image, f'/camera/{camera}/image_raw', images.append, 10)
        self.create_subscription(JointState, '/joint_states', self.joints.append, 10)
        self.create_subscription(
            TimeReference, '/arm_controller/trajectory_events',
            lambda message: self.events.append(message.source), 10)
        self.trajectories = self.create_publisher(
            JointTrajectory, '/arm_controller/joint_trajectory', 10)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Spin until it holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f'waited in vain for {what}'
            self._executor.spin_once(timeout_sec=0.05)

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service."""
        client = self.create_client(kind, name)
        self.until(client.service_is_ready, name)
        future = client.call_async(request)
        self.until(future.done, f'the answer of {name}')
        self.destroy_client(client)
        return future.result()

    def position(self) -> np.ndarray:
        """The newest joint positions [rad]."""
        return np.array(self.joints[-1].position)

    def move(self, target: float, stamp_ns: int = 0, velocity: float = 0.0) -> None:
        """Ask for all joints to be at `target` in 0.3 s."""
        message = JointTrajectory(joint_names=list(reversed(JOINT_NAMES)))
        message.header.stamp = Time(nanoseconds=stamp_ns).to_msg()
        message.points.append(JointTrajectoryPoint(
            positions=[target] * 6, velocities=[velocity] * 6,
            time_from_start=Duration(nanosec=300_000_000)))
        self.trajectories.publish(message)


@pytest.fixture(scope='module')
def robot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observer]:
    with PrivateDomain() as domain:
        environment = {**dds_environment(), 'ROS_DOMAIN_ID': str(domain.domain_id),
                       'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
        context = rclpy.Context()
        with (pytest.MonkeyPatch.context() as patch,
              ProcessGroup(simulated_robot_processes({'seed': SEED}), environment,
                           tmp_path_factory.mktemp('log')) as group):
            patch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
            rclpy.init(context=context, domain_id=domain.domain_id)
            observer = Observer(context)
            observer.until(lambda: group.check() or all(observer.images.values()), 'images')
            observer.until(lambda: observer.trajectories.get_subscription_count(), 'controller')
            yield observer
            rclpy.shutdown(context=context)


def test_cameras_show_a_scene_with_the_time_of_capture(robot: Observer) -> None:
    seen = {camera: len(images) for camera, images in robot.images.items()}
    robot.until(lambda: all(len(images) > seen[camera] + 3
                            for camera, images in robot.images.items()), 'more images')
    for images in robot.images.values():
        last = images[-1]
        assert (last.width, last.height, last.encoding, last.step) == (64, 64, 'rgb8', 192)
        assert np.frombuffer(last.data, np.uint8).std() > 10.0
        stamps = [Time.from_msg(image.header.stamp).nanoseconds for image in images]
        assert stamps == sorted(set(stamps))
    front = {Time.from_msg(image.header.stamp).nanoseconds for image in robot.images['front']}
    wrist = {Time.from_msg(image.header.stamp).nanoseconds for image in robot.images['wrist']}
    assert len(front & wrist) >= len(wrist) - 2  # both cameras capture at the same moment


def test_a_trajectory_moves_the_arm(robot: Observer) -> None:
    robot.events.clear()
    robot.move(0.4)
    robot.until(lambda: np.abs(robot.position() - 0.4).max() < 0.15, 'the arm at 0.4 rad')
    assert list(robot.joints[-1].name) == list(JOINT_NAMES)
    robot.until(lambda: 'started' in robot.events, 'the start of the trajectory')
    assert robot.events[:2] == ['received', 'started']


def test_a_trajectory_of_the_past_is_rejected_and_the_arm_stays(robot: Observer) -> None:
    robot.events.clear()
    robot.move(-0.9, stamp_ns=robot.get_clock().now().nanoseconds - 10**9)
    robot.until(lambda: 'rejected' in robot.events, 'the rejection')
    robot.events.clear()
    robot.move(0.4)  # the sentinel: whatever came before it has been dealt with
    robot.until(lambda: 'started' in robot.events, 'the start of the sentinel')
    assert robot.position().min() > -0.5


def test_a_reset_places_the_scene_anew_and_old_targets_do_not_move_the_arm(robot: Observer
                                                                            ) -> None:
    robot.move(0.3)
    robot.until(lambda: np.abs(robot.position() - 0.3).max() < 0.15, 'the arm at 0.3 rad')
    robot.call(SetBool, '/arm_controller/set_active', SetBool.Request(data=False))
    first = robot.call(Trigger, '/so101/reset', Trigger.Request())
    second = robot.call(Trigger, '/so101/reset', Trigger.Request())
    assert first.message.endswith(f'seed {SEED}') and second.message.endswith(f'seed {SEED + 1}')
    robot.call(SetBool, '/arm_controller/set_active', SetBool.Request(data=True))
    robot.joints.clear()
    robot.until(lambda: len(robot.joints) > 50, 'joint states')
    assert np.abs(robot.position()).max() < 0.1


def test_cameras_can_be_stopped_while_everything_else_goes_on(robot: Observer) -> None:
    robot.call(SetBool, '/so101/stream_cameras', SetBool.Request(data=False))
    seen = [len(images) for images in robot.images.values()]
    count = len(robot.joints)
    robot.until(lambda: len(robot.joints) > count + 50, 'joint states')
    assert all(len(images) <= before + 2
               for images, before in zip(robot.images.values(), seen, strict=True))
    robot.call(SetBool, '/so101/stream_cameras', SetBool.Request(data=True))
    robot.until(lambda: all(len(images) > before + 5 for images, before in zip(
        robot.images.values(), seen, strict=True)), 'images again')
