"""A robot for drills: it senses what it is told to, and does what it is commanded."""

from __future__ import annotations

import array
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.time import Time
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray

from physis_core.delivery.chunk import Floats
from physis_core.units import NS_PER_S

JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll', 'gripper')
CAMERAS = ('front', 'wrist')
COMMANDS = '/arm_controller/commands'
_CAMERA_HZ, _JOINT_HZ, _CLOCK_HZ = 30.0, 100.0, 100.0
_TICK_S = 0.002
_KEPT_S = 60.0


@dataclass(frozen=True, eq=False)
class Commanded:
    """A command as it was received.

    Attributes:
        time_ns: when (steady clock).
        number: counts the commands of the sender; a gap: one was lost on the way.
        position: ``[joints]`` [rad].
    """

    time_ns: int
    number: int
    position: Floats


class DrillRobot(Node):
    """Joints are where they were last commanded to be; images are noise, so that a policy moves.

    One thread publishes; the executor's thread takes commands.  Faults are switches that the
    drill sets: each is one attribute, read once a tick.
    """

    def __init__(self) -> None:
        super().__init__('drill_robot')
        self.frozen: set[str] = set()
        self.gone: set[str] = set()
        self.nan_joint = ''
        self.order = JOINTS
        self.clock_offset_ns = time.time_ns() - time.monotonic_ns()
        self.commands: deque[Commanded] = deque()
        self._position = np.zeros(len(JOINTS))
        self._random = np.random.default_rng(0)
        self._pixels = {camera: self._noise() for camera in CAMERAS}
        self._images = {camera: self.create_publisher(Image, f'/camera/{camera}/image_raw', 5)
                        for camera in CAMERAS}
        self._states = self.create_publisher(JointState, '/joint_states', 10)
        self._clock = self.create_publisher(Clock, '/clock', QoSProfile(depth=1))
        self.listen()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name='robot', daemon=True)
        self._thread.start()

    def listen(self) -> None:
        """Subscribe to commands."""
        self._subscription = self.create_subscription(
            Float64MultiArray, COMMANDS, self._take_command, 50)

    def leave(self) -> None:
        """Stop listening to commands."""
        self.destroy_subscription(self._subscription)

    def close(self) -> None:
        """Stop sensing."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        now_ns = time.monotonic_ns()
        due_ns = {'clock': now_ns, 'joints': now_ns, 'cameras': now_ns}
        actions = {'clock': (self._publish_clock, _CLOCK_HZ),
                   'joints': (self._publish_joints, _JOINT_HZ),
                   'cameras': (self._publish_images, _CAMERA_HZ)}
        while not self._ending.wait(_TICK_S):
            now_ns = time.monotonic_ns()
            for name, (act, hz) in actions.items():
                if now_ns >= due_ns[name]:
                    due_ns[name] = max(due_ns[name] + round(NS_PER_S / hz), now_ns)
                    act()

    def _now(self) -> Time:
        return Time(nanoseconds=time.monotonic_ns() + self.clock_offset_ns)

    def _publish_clock(self) -> None:
        self._clock.publish(Clock(clock=self._now().to_msg()))

    def _publish_joints(self) -> None:
        positions = dict(zip(JOINTS, self._position.tolist(), strict=True))
        if self.nan_joint:
            positions[self.nan_joint] = float('nan')
        order = self.order
        message = JointState(name=list(order), position=[positions[name] for name in order])
        message.header.stamp = self._now().to_msg()
        self._states.publish(message)

    def _publish_images(self) -> None:
        for camera, publisher in self._images.items():
            if camera in self.gone:
                continue
            if camera not in self.frozen:
                self._pixels[camera] = self._noise()
            message = Image(height=64, width=64, encoding='rgb8', step=192)
            message.header.stamp = self._now().to_msg()
            message.data = self._pixels[camera]
            publisher.publish(message)

    def _take_command(self, message: Float64MultiArray, info: Mapping[str, Any]) -> None:
        position = np.array(message.data)
        self._position = position
        now_ns = time.monotonic_ns()
        self.commands.append(Commanded(now_ns, info['publication_sequence_number'], position))
        while self.commands[0].time_ns < now_ns - round(_KEPT_S * NS_PER_S):
            self.commands.popleft()

    def _noise(self) -> array.array[int]:
        return array.array('B', self._random.integers(0, 255, 64 * 64 * 3, np.uint8).tobytes())
