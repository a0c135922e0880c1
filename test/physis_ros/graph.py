"""A real ROS graph around the node under test: what it is given, what it says."""

from __future__ import annotations

import array
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

NAMES = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll', 'gripper')
_PATIENCE_S = 60.0


class Graph:
    """A probe node and an executor that spins only while a test waits for something."""

    def __init__(self) -> None:
        self.executor = SingleThreadedExecutor()
        self.probe = Node('probe')
        self.executor.add_node(self.probe)
        self.diagnostics: dict[str, DiagnosticStatus] = {}
        self.probe.create_subscription(DiagnosticArray, '/diagnostics', self._take, 50)
        self._cameras = {name: self.probe.create_publisher(Image, f'/camera/{name}/image_raw', 10)
                         for name in ('front', 'wrist')}
        self._joints = self.probe.create_publisher(JointState, '/joint_states', 10)
        self._frames = 0

    def close(self) -> None:
        self.executor.shutdown()
        self.probe.destroy_node()

    def listen(self, kind: type, topic: str) -> list[Any]:
        """What comes on a topic from now on."""
        heard: list[Any] = []
        self.probe.create_subscription(kind, topic, heard.append, 100)
        return heard

    def wait_for(self, what: Callable[[], Any], why: str) -> Any:
        """Spin until `what()` is true; fails with `why`."""
        until = time.monotonic() + _PATIENCE_S
        while not (result := what()):
            assert time.monotonic() < until, f'waited {_PATIENCE_S:g} s for {why}'
            self.executor.spin_once(timeout_sec=0.02)
        return result

    def spin_for(self, seconds: float) -> None:
        """Let time pass, for what is not awaited but provoked."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.executor.spin_once(timeout_sec=0.005)

    def discovered(self, node: Node, topics: Sequence[str]) -> None:
        """Wait until the topics have a publisher and a subscriber."""
        self.wait_for(lambda: all(node.count_publishers(topic) and node.count_subscribers(topic)
                                  for topic in topics), f'discovery of {topics}')
        heard = {subscription.topic_name for subscription in node.subscriptions}
        for publisher in (*self._cameras.values(), self._joints):
            if publisher.topic_name in heard:
                self.wait_for(publisher.get_subscription_count, f'{publisher.topic_name}')

    # -- what a robot says

    def show(self, camera: str, *, stamp: Time | None = None, pixels: np.ndarray | None = None
             ) -> None:
        """Publish an image; each differs from the one before."""
        self._frames += 1
        if pixels is None:
            pixels = np.full((64, 64, 3), self._frames % 256, np.uint8)
        message = Image(height=pixels.shape[0], width=pixels.shape[1], encoding='rgb8',
                        step=3 * pixels.shape[1])
        message.header.stamp = stamp or self.now()
        data = array.array('B')
        data.frombytes(pixels.tobytes())
        message.data = data
        self._cameras[camera].publish(message)

    def feel(self, positions: dict[str, float] | None = None, *, stamp: Time | None = None
             ) -> None:
        """Publish joint positions by name."""
        positions = positions or dict.fromkeys(NAMES, 0.0)
        message = JointState(name=list(positions), position=list(positions.values()))
        message.header.stamp = stamp or self.now()
        self._joints.publish(message)

    def sense(self) -> None:
        """Everything once."""
        self.feel()
        for camera in self._cameras:
            self.show(camera)

    def now(self) -> Time:
        return self.probe.get_clock().now().to_msg()

    # -- what diagnostics say

    def says(self, name: str, text: str) -> DiagnosticStatus:
        """Wait for a status whose message contains a text."""
        return self.wait_for(
            lambda: (status := self.diagnostics.get(name)) and text in status.message and status,
            f'`{text}` from {name}; it says '
            f'{getattr(self.diagnostics.get(name), "message", None)}')

    def _take(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.diagnostics[status.name] = status


def initialise(parameters: dict[str, object]) -> None:
    """Start rclpy with parameters as a command line would set them."""
    arguments = ['--ros-args']
    for name, value in parameters.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        arguments += ['-p', f'{name}:={text}']
    rclpy.init(args=arguments)
