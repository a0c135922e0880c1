"""ROS time and the steady clock: one offset between them, and its jumps.

The engine, the ring and the servo live on the steady clock, stamps of messages on the ROS clock.
"""

from __future__ import annotations

import time

from builtin_interfaces.msg import Time as TimeMessage
from rclpy.clock import Clock

from physis_core.units import NS_PER_MS, NS_PER_S


class SteadyTime:
    """Converts stamps; every thread may read it, :meth:`jump_ns` is called by one.

    Attributes:
        offset_ns: ROS time minus steady time.
    """

    def __init__(self, clock: Clock, jump_ms: float) -> None:
        """``jump_ms``: a change of the offset between two looks that is no drift any more."""
        self._clock = clock
        self._jump_ns = round(jump_ms * NS_PER_MS)
        self.offset_ns = self._measured_ns()

    def jump_ns(self) -> int:
        """Look at both clocks: how far ROS time has jumped since the last look, else 0.

        Either way the offset is the new one afterwards, so that drift never adds up.
        """
        measured_ns = self._measured_ns()
        change_ns = measured_ns - self.offset_ns
        self.offset_ns = measured_ns
        return change_ns if abs(change_ns) > self._jump_ns else 0

    def steady_ns(self, stamp: TimeMessage) -> int:
        """A stamp on the steady clock."""
        return stamp.sec * NS_PER_S + stamp.nanosec - self.offset_ns

    def stamp(self, steady_ns: int) -> TimeMessage:
        """A steady time as a stamp; before the ROS clock's zero it is zero."""
        ros_ns = max(steady_ns + self.offset_ns, 0)
        return TimeMessage(sec=ros_ns // NS_PER_S, nanosec=ros_ns % NS_PER_S)

    def _measured_ns(self) -> int:
        return self._clock.now().nanoseconds - time.monotonic_ns()
