"""One fault of the drill: provoke, watch, mend; and what was seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from std_srvs.srv import Trigger

from physis_core.units import NS_PER_S
from physis_ros.demo.calls import NoAnswer
from physis_ros.drill.faults import Fault, Scene
from physis_ros.drill.robot import Commanded

# Commands that do not differ for so long are rest.
_REST_S = 0.1
_AFTER_S = 1.0
_START_S = 180.0
_MOVING_RAD = 1e-6


@dataclass(frozen=True)
class Bounds:
    """What a fault may cost.

    Attributes:
        safe_s: from the fault until the robot rests, where it must [s].
        said_s: from the fault until diagnostics name it, where they must [s].
        jump_rad: largest difference between two commands that were sent one after the other
            [rad].
    """

    safe_s: float
    said_s: float
    jump_rad: float


@dataclass(frozen=True)
class Outcome:
    """What one fault did.

    Attributes:
        fault: its name.
        safe_s: from the fault until the robot rested [s]; None: it had no reason to, or did not.
        said_s: from the fault until diagnostics named it [s]; None likewise.
        jump_rad: largest difference between two commands that were sent one after the other.
        lost_commands: sent, and not received by the robot of the drill.
        said: the message that named it.
        recovered: whether it went on after it was mended and reset.
        within_bounds: whether all of that is as it must be.
    """

    fault: str
    safe_s: float | None
    said_s: float | None
    jump_rad: float
    lost_commands: int
    said: str
    recovered: bool
    within_bounds: bool

    def shown(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Exercise:
    """Runs faults one after the other on a running policy."""

    def __init__(self, scene: Scene, bounds: Bounds) -> None:
        self._scene = scene
        self._robot = robot = scene.robot
        self._calls = scene.calls
        self._bounds = bounds
        self._fault: Fault | None = None
        self._named: list[tuple[int, str]] = []
        robot.create_subscription(DiagnosticArray, '/diagnostics', self._take, 50)

    def begin(self) -> None:
        """Wait until the policy moves the robot."""
        self._calls.wait_until(self._moving, _START_S, 'the policy to move the robot')

    def run(self, fault: Fault) -> Outcome:
        """Provoke one fault, watch, mend it, and get going again."""
        self._fault = fault
        self._named.clear()
        begin_ns = time.monotonic_ns()
        fault.provoke(self._scene)
        if fault.stops:
            self._wait(lambda: not self._moving(), begin_ns, self._bounds.safe_s + _REST_S)
        if fault.status:
            self._wait(lambda: bool(self._named), begin_ns, self._bounds.said_s)
        self._calls.spin(_AFTER_S)
        safe_s = self._rest_s(begin_ns) if fault.stops else None
        fault.mend(self._scene)
        recovered = self._recover()
        jump_rad, lost = self._largest_jump(begin_ns)
        said_s, said = None, ''
        if self._named:
            said_s, said = (self._named[0][0] - begin_ns) / NS_PER_S, self._named[0][1]
        bounds = self._bounds
        within = (recovered and jump_rad <= bounds.jump_rad
                  and (not fault.stops or (safe_s is not None and safe_s <= bounds.safe_s))
                  and (not fault.status or (said_s is not None and said_s <= bounds.said_s)))
        return Outcome(fault.name, safe_s, said_s, jump_rad, lost, said, recovered,
                       within)

    def _wait(self, condition: Callable[[], bool], begin_ns: int, limit_s: float) -> None:
        """Spin until it holds or the limit is over; what was seen is judged later."""
        left_s = limit_s - (time.monotonic_ns() - begin_ns) / NS_PER_S
        with suppress(NoAnswer):
            self._calls.wait_until(condition, max(left_s, 0.0), 'the limit')

    def _recover(self) -> bool:
        """Reset until the robot moves again, which a lost worker delays."""
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            with suppress(NoAnswer):
                self._calls.call(Trigger, '/wam_node/reset', Trigger.Request(), limit_s=20.0)
                self._calls.spin(_AFTER_S)  # what moved before the reset does not count
                self._calls.wait_until(self._moving, 5.0, 'movement')
                return True
            self._calls.spin(_AFTER_S)
        return False

    def _moving(self) -> bool:
        """Whether commands have changed within the last moments."""
        since_ns = time.monotonic_ns() - round(_REST_S * NS_PER_S)
        return self._last_move_ns(since_ns) is not None

    def _rest_s(self, begin_ns: int) -> float | None:
        """From the fault until the last command that differed from its predecessor."""
        if self._moving():
            return None
        last_ns = self._last_move_ns(begin_ns)
        return 0.0 if last_ns is None else (last_ns - begin_ns) / NS_PER_S

    def _last_move_ns(self, since_ns: int) -> int | None:
        for after, before in pairwise(reversed(self._since(since_ns))):
            if np.abs(after.position - before.position).max() > _MOVING_RAD:
                return after.time_ns
        return None

    def _largest_jump(self, since_ns: int) -> tuple[float, int]:
        """The largest difference [rad], and how many commands were lost on the way here."""
        jumps, lost = [0.0], 0
        for before, after in pairwise(self._since(since_ns)):
            missing = after.number - before.number - 1
            if missing > 0:
                lost += missing
            else:
                jumps.append(float(np.abs(after.position - before.position).max()))
        return max(jumps), lost

    def _since(self, since_ns: int) -> list[Commanded]:
        return [command for command in self._robot.commands if command.time_ns >= since_ns]

    def _take(self, message: DiagnosticArray) -> None:
        fault = self._fault
        if fault is None or self._named or not fault.status:
            return
        for status in message.status:
            if status.name == fault.status and fault.words in status.message:
                self._named.append((time.monotonic_ns(), status.message))
