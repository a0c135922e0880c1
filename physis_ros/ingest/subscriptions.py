"""Subscriptions of all sources, and what is done when a message comes.

Everything here runs in the node's executor thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from geometry_msgs.msg import WrenchStamped
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from physis_core.errors import InputError
from physis_core.units import NS_PER_MS
from physis_ros.ingest.compressed import decoded
from physis_ros.ingest.image import pixels_of, resized
from physis_ros.ingest.instruction import Instruction
from physis_ros.ingest.joint_states import JointCollector
from physis_ros.ingest.observation import Assembler, Observation
from physis_ros.ingest.source import Condition, Source, SourceHealth
from physis_ros.ingest.wrench import wrench_of
from physis_ros.parameters import Settings
from physis_ros.policy import Policy
from physis_ros.steady_time import SteadyTime

# A capture that lies further in the future is of a clock that is not ours.  Simulated time is known
# only as well as /clock was heard lately.
_AHEAD_NS = 100 * NS_PER_MS

RELIABILITIES = {'best_effort': ReliabilityPolicy.BEST_EFFORT,
                 'reliable': ReliabilityPolicy.RELIABLE}
DURABILITIES = {'volatile': DurabilityPolicy.VOLATILE,
                'transient_local': DurabilityPolicy.TRANSIENT_LOCAL}

Stamped: TypeAlias = Image | CompressedImage | JointState | WrenchStamped


class Ingest:
    """Turns sensor messages into observations."""

    def __init__(self, node: Node, settings: Settings, policy: Policy, times: SteadyTime,
                 on_observation: Callable[[Observation], None],
                 on_instruction: Callable[[], None] = lambda: None) -> None:
        """Subscribe to all sources; sensors are ignored until `active` is set.

        Raises:
            InputError: the instruction is not one for this model.
        """
        self.active = False
        self.joints = JointCollector(policy.joints)
        self._node = node
        self._times = times
        self._on_observation = on_observation
        self._on_instruction = on_instruction
        self._subscriptions: list[Subscription] = []
        self.instruction = self._subscribe_instruction(settings, policy)  # first: it may refuse
        others = [source for source in (
            self._subscribe_joints(settings, policy), self._subscribe_wrench(settings, policy))
            if source is not None]
        # An executor takes what is there in the order of subscription: cameras come last, so that
        # the observation which they complete has the joint states that came with them.
        cameras = [self._subscribe_camera(settings, policy, camera)
                   for camera in settings['camera_names']]
        instructions = [] if self.instruction is None else [self.instruction.source]
        observed = self.instruction is not None and not self.instruction.is_prompt
        self.assembler = Assembler(cameras, others, held=instructions if observed else ())
        self._sensors = (*cameras, *others)
        self.sources = (*self._sensors, *instructions)

    def unfit(self, now_ns: int) -> list[Source]:
        """The sources that are missing or stale: without them there is no observation.

        An instruction that was never given is not one of them: `untold` says so.
        """
        return [source for source in self.sources if not source.fresh(now_ns)
                and not (source.value is None and self._is_instruction(source))]

    def untold(self) -> str:
        """Says that there is no instruction yet, and how to give one; empty: there is."""
        if self.instruction is None or self.instruction.source.value is not None:
            return ''
        return f'no instruction yet: publish on {self._instruction_topic} (std_msgs/String)'

    def health(self, now_ns: int) -> tuple[SourceHealth, ...]:
        """What diagnostics say about every source."""
        found = []
        for source in self.sources:
            health = source.health(now_ns)
            if source is self._joint_source and health.condition is Condition.MISSING:
                health = replace(health, absence=self.joints.absence(self._joint_topic))
            elif self._is_instruction(source):
                health = replace(health, absence=self.untold())
            found.append(health)
        return tuple(found)

    def clear(self) -> None:
        """Forget everything that was sensed; an instruction holds."""
        self.joints.clear()
        for source in self._sensors:
            source.clear()

    def instruct(self, text: str) -> None:
        """Take an instruction, by whatever way it came.

        Raises:
            InputError: it cannot be given to the model; the one before is kept.
        """
        if self.instruction is not None and self.instruction.take(text, time.monotonic_ns()):
            self._on_instruction()

    def close(self) -> None:
        """Unsubscribe."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()

    def _subscribe_camera(self, settings: Settings, policy: Policy, camera: str) -> Source:
        prefix = f'cameras.{camera}'
        source = Source(camera, _ns(settings[f'{prefix}.stale_ms']),
                        _ns(settings[f'{prefix}.frozen_ms']), settings[f'{prefix}.expected_hz'])
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
            _quality(settings, prefix)))
        return source

    def _subscribe_joints(self, settings: Settings, policy: Policy) -> Source | None:
        """Joints are listened to in any case: a motion begins where they are."""
        name = settings['joints.input']
        self._joint_source: Source | None = None
        self._joint_shape: tuple[int, ...] = ()
        self._joint_topic: str = settings['joints.topic']
        if name:
            self._joint_source = Source(name, _ns(settings['joints.stale_ms']), frozen_ns=0,
                                        expected_hz=settings['joints.expected_hz'])
            self._joint_shape = policy.description.observation[name].shape
        self._subscriptions.append(self._node.create_subscription(
            JointState, self._joint_topic, self._take_joints,
            _quality(settings, 'joints')))
        return self._joint_source

    def _subscribe_wrench(self, settings: Settings, policy: Policy) -> Source | None:
        if not settings['wrench.input']:
            return None
        source = Source(settings['wrench.input'], _ns(settings['wrench.stale_ms']),
                        _ns(settings['wrench.frozen_ms']), settings['wrench.expected_hz'])
        frame = settings['wrench.frame']
        shape = policy.description.observation[source.name].shape

        def take(message: WrenchStamped) -> None:
            if not self.active:
                return
            try:
                self._accept(source, wrench_of(message, frame).reshape(shape), message)
            except InputError as error:
                self._refuse(source, error)

        self._subscriptions.append(self._node.create_subscription(
            WrenchStamped, settings['wrench.topic'], take, _quality(settings, 'wrench')))
        return source

    def _subscribe_instruction(self, settings: Settings, policy: Policy) -> Instruction | None:
        if not settings['instruction.input']:
            return None
        instruction = Instruction(settings['instruction.input'], policy.description,
                                  _ns(settings['instruction.stale_ms']))
        instruction.take(settings['instruction.text'], time.monotonic_ns())

        def take(message: String) -> None:
            try:
                self.instruct(message.data)
            except InputError as error:
                self._refuse(instruction.source, error)

        subscription = self._node.create_subscription(
            String, settings['instruction.topic'], take, QoSProfile(
                depth=1, durability=DURABILITIES[settings['instruction.durability']]))
        self._instruction_topic: str = subscription.topic_name
        self._subscriptions.append(subscription)
        return instruction

    def _is_instruction(self, source: Source) -> bool:
        return self.instruction is not None and source is self.instruction.source

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

    def _accept(self, source: Source, value: np.ndarray, message: Stamped) -> None:
        now_ns = time.monotonic_ns()
        source.take(value, self._capture_ns(message), now_ns)
        self._assemble(now_ns)

    def _assemble(self, now_ns: int) -> None:
        if self.instruction is not None and not self.instruction.source.fresh(now_ns):
            return
        observation = self.assembler.observation(now_ns)
        if observation is not None:
            self._on_observation(observation)

    def _refuse(self, source: Source, error: InputError) -> None:
        source.refuse(str(error), time.monotonic_ns())
        self._node.get_logger().warning(str(error), throttle_duration_sec=2.0)

    def _capture_ns(self, message: Stamped) -> int:
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


def _quality(settings: Settings, prefix: str) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=settings[f'{prefix}.depth'],
        reliability=RELIABILITIES[settings[f'{prefix}.reliability']])


def _ns(milliseconds: float) -> int:
    return round(milliseconds * NS_PER_MS)
