"""ROS time and the steady clock: one offset between them, and its jumps.

The engine, the ring and the servo live on the steady clock, stamps of messages on the ROS clock.
"""

from __future__ import annotations

import time
from collections import deque

from builtin_interfaces.msg import Time as TimeMessage
from rclpy.clock import Clock

from physis_core.units import NS_PER_MS, NS_PER_S

# How long an offset counts that was measured; a simulated clock is rarely silent for longer.
_REMEMBERED_NS = 2 * NS_PER_S
_MOST_REMEMBERED = 256


class SteadyTime:
    """Converts stamps; every thread may read it, :meth:`jump_ns` is called by one.

    Attributes:
        offset_ns: ROS time minus steady time.
    """

    def __init__(self, clock: Clock, jump_ms: float) -> None:
        """``jump_ms``: a change of the offset between two looks that is no drift any more."""
        self._clock = clock
        self._jump_ns = round(jump_ms * NS_PER_MS)
        self._ros_ns, steady_ns = self._now_ns()
        self.offset_ns = self._ros_ns - steady_ns
        self._offsets: deque[tuple[int, int]] = deque(
            [(steady_ns, self.offset_ns)], maxlen=_MOST_REMEMBERED)

    def jump_ns(self) -> int:
        """Look at both clocks: how far ROS time has jumped since the last look, else 0.

        ROS time that stands still or is slow has not jumped, nor has it when it is then back where
        it would have been: a simulation pauses, and a message of /clock is late on a busy machine.
        Whatever it is, the offset is the new one afterwards, so that drift never adds up.
        """
        before_ns, before_offset_ns = self._ros_ns, self.offset_ns
        self._ros_ns, steady_ns = self._now_ns()
        self.offset_ns = self._ros_ns - steady_ns
        while self._offsets and self._offsets[0][0] < steady_ns - _REMEMBERED_NS:
            self._offsets.popleft()
        change_ns = self.offset_ns - before_offset_ns
        ahead_ns = self.offset_ns - max(
            (offset_ns for _, offset_ns in self._offsets), default=before_offset_ns)
        forwards = min(change_ns, ahead_ns) > self._jump_ns
        backwards = change_ns < -self._jump_ns and self._ros_ns < before_ns
        if forwards or backwards:
            self._offsets.clear()
        self._offsets.append((steady_ns, self.offset_ns))
        return change_ns if forwards or backwards else 0

    def steady_ns(self, stamp: TimeMessage) -> int:
        """A stamp on the steady clock."""
        return stamp.sec * NS_PER_S + stamp.nanosec - self.offset_ns

    def stamp(self, steady_ns: int) -> TimeMessage:
        """A steady time as a stamp; before the ROS clock's zero it is zero."""
        ros_ns = max(steady_ns + self.offset_ns, 0)
        return TimeMessage(sec=ros_ns // NS_PER_S, nanosec=ros_ns % NS_PER_S)

    def _now_ns(self) -> tuple[int, int]:
        """ROS time and steady time."""
        return self._clock.now().nanoseconds, time.monotonic_ns()
