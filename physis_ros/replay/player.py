"""Plays a recording on a ROS graph, at the pace at which it was recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.time import Time
from std_msgs.msg import String

from physis_core.units import NS_PER_S
from physis_ros.replay.bag import Bag

# Fits every subscription, also one that asks for an instruction from before it was there.
_TEXT_QUALITY = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Player(Node):
    """Publishes recorded messages with stamps of now: their ages are those of the recording."""

    def __init__(self, bag: Bag, rate: float) -> None:
        """``rate``: 2.0 plays twice as fast."""
        super().__init__('replay')
        self._bag = bag
        self._rate = rate
        self._types = bag.types()
        self._outlets: dict[str, Any] = {
            topic: self.create_publisher(kind, topic, _TEXT_QUALITY if kind is String else 10)
            for topic, kind in bag.topics().items()}

    def connected(self) -> bool:
        """Whether somebody listens to any of the topics."""
        return any(outlet.get_subscription_count() for outlet in self._outlets.values())

    def unheard(self) -> list[str]:
        """Topics that nobody listens to."""
        return sorted(topic for topic, outlet in self._outlets.items()
                      if not outlet.get_subscription_count())

    def why_unheard(self, topic: str) -> str:
        """What keeps a topic from being heard, and the remedy."""
        asked = {info.topic_type for info in self.get_subscriptions_info_by_topic(topic)}
        recorded = self._types[topic]
        if not asked - {recorded}:
            return f'nobody listens to {topic}: map it with --map'
        return (f'{topic} was recorded as {recorded}, and the policy listens for '
                f'{" and ".join(sorted(asked))}: correct `cameras.NAME.transport`, or map the '
                'topic with --map')

    def play(self, spin: Callable[[float], None], progress: Callable[[float], None]) -> None:
        """Play once; ``spin`` lets a time pass [s], ``progress`` is told the share played."""
        begin_ns, first_ns = time.monotonic_ns(), None
        length_ns = max(self._bag.duration_s * NS_PER_S, 1.0)
        for recorded in self._bag.messages():
            first_ns = recorded.time_ns if first_ns is None else first_ns
            due_ns = begin_ns + round((recorded.time_ns - first_ns) / self._rate)
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                spin(left_ns / NS_PER_S)
            if hasattr(recorded.message, 'header'):  # a text holds at any time
                self._stamp(recorded.message, recorded.time_ns)
            self._outlets[recorded.topic].publish(recorded.message)
            progress((recorded.time_ns - first_ns) / length_ns)

    def _stamp(self, message: Any, recorded_ns: int) -> None:
        """Move the stamp to now, and keep how old it was when it was recorded."""
        stamp_ns = Time.from_msg(message.header.stamp).nanoseconds
        age_ns = max(recorded_ns - stamp_ns, 0) if stamp_ns else 0
        now_ns = self.get_clock().now().nanoseconds
        message.header.stamp = Time(nanoseconds=max(now_ns - age_ns, 0)).to_msg()
