"""Subscriptions of all sources, and what is done when a message comes.

Everything here runs in the node's executor thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image, JointState

from physis_core.errors import InputError
from physis_core.units import NS_PER_MS
from physis_ros.ingest.compressed import decoded
from physis_ros.ingest.image import pixels_of, resized
from physis_ros.ingest.joint_states import JointCollector
from physis_ros.ingest.observation import Assembler, Observation
from physis_ros.ingest.source import Source
from physis_ros.parameters import Settings
from physis_ros.policy import Policy
from physis_ros.steady_time import SteadyTime

# A capture that lies further in the future is of a clock that is not ours.  Simulated time is known
# only as well as /clock was heard lately.
_AHEAD_NS = 100 * NS_PER_MS
# Joint states that may wait while images are converted: 40 ms of them at 500 Hz.
_JOINTS_DEPTH = 20


class Ingest:
    """Turns sensor messages into observations."""

    def __init__(self, node: Node, settings: Settings, policy: Policy, times: SteadyTime,
                 on_observation: Callable[[Observation], None]) -> None:
        """Subscribe to all sources; they are ignored until `active` is set."""
        self.active = False
        self.joints = JointCollector(policy.joints)
        self._node = node
        self._times = times
        self._on_observation = on_observation
        self._subscriptions: list[Subscription] = []
        others = []
        self._joint_source: Source | None = None
        if settings['joints.input']:
            self._joint_source = Source(
                settings['joints.input'], _ns(settings['joints.stale_ms']), frozen_ns=0)
            others.append(self._joint_source)
        self._joint_shape = (
            policy.description.observation[settings['joints.input']].shape
            if settings['joints.input'] else ())
        self._subscriptions.append(node.create_subscription(
            JointState, settings['joints.topic'], self._take_joints,
            _quality(settings['joints.reliability'], _JOINTS_DEPTH)))
        # An executor takes what is there in the order of subscription: cameras come last, so that
        # the observation which they complete has the joint states that came with them.
        cameras = [self._subscribe_camera(settings, policy, camera)
                   for camera in settings['camera_names']]
        self.assembler = Assembler(cameras, others)

    def clear(self) -> None:
        """Forget everything that was received."""
        self.joints.clear()
        for source in self.assembler.sources:
            source.clear()

    def close(self) -> None:
        """Unsubscribe."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()

    def _subscribe_camera(self, settings: Settings, policy: Policy, camera: str) -> Source:
        prefix = f'cameras.{camera}'
        source = Source(camera, _ns(settings[f'{prefix}.stale_ms']),
                        _ns(settings[f'{prefix}.frozen_ms']))
        height, width = policy.image_size(camera)
        encoding = settings[f'{prefix}.encoding']
        compressed = settings[f'{prefix}.transport'] == 'compressed'

        def take(message: Image | CompressedImage) -> None:
            if not self.active:
                return
            try:
                if isinstance(message, CompressedImage):
                    pixels = decoded(camera, message, height, width)
                else:
                    pixels = pixels_of(camera, message, encoding)
                self._accept(source, resized(pixels, height, width), message)
            except InputError as error:
                self._refuse(source, error)

        self._subscriptions.append(self._node.create_subscription(
            CompressedImage if compressed else Image, settings[f'{prefix}.topic'], take,
            _quality(settings[f'{prefix}.reliability'], depth=1)))
        return source

    def _take_joints(self, message: JointState) -> None:
        if not self.active:
            return
        source = self._joint_source
        try:
            if not self.joints.take(message, self._capture_ns(message)) or source is None:
                return
        except InputError as error:
            if source is not None:
                self._refuse(source, error)
            return
        oldest_ns = self.joints.oldest_ns()
        if oldest_ns is not None:
            value = self.joints.positions().astype(np.float32).reshape(self._joint_shape)
            now_ns = time.monotonic_ns()
            source.take(value, oldest_ns, now_ns)
            self._assemble(now_ns)

    def _accept(self, source: Source, value: np.ndarray, message: Image | CompressedImage) -> None:
        now_ns = time.monotonic_ns()
        source.take(value, self._capture_ns(message), now_ns)
        self._assemble(now_ns)

    def _assemble(self, now_ns: int) -> None:
        observation = self.assembler.observation(now_ns)
        if observation is not None:
            self._on_observation(observation)

    def _refuse(self, source: Source, error: InputError) -> None:
        source.refuse(str(error), time.monotonic_ns())
        self._node.get_logger().warning(str(error), throttle_duration_sec=2.0)

    def _capture_ns(self, message: Image | CompressedImage | JointState) -> int:
        """When the message was captured; without a stamp, when it was received.

        Raises:
            InputError: the stamp lies in the future.
        """
        now_ns = time.monotonic_ns()
        stamp = message.header.stamp
        if not stamp.sec and not stamp.nanosec:
            return now_ns
        capture_ns = self._times.steady_ns(stamp)
        if capture_ns - now_ns > _AHEAD_NS:
            raise InputError(
                f'a stamp lies {(capture_ns - now_ns) / 1e6:.0f} ms in the future; synchronise the '
                'clocks of the machines (chrony), or check use_sim_time; the message is refused')
        return min(capture_ns, now_ns)


def _quality(reliability: str, depth: int) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth,
        reliability=(ReliabilityPolicy.RELIABLE if reliability == 'reliable'
                     else ReliabilityPolicy.BEST_EFFORT))


def _ns(milliseconds: float) -> int:
    return round(milliseconds * NS_PER_MS)
