"""The faults of the drill: how each is provoked, how it is mended, and what must follow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from std_srvs.srv import Trigger

from physis_core.errors import InputError, PhysisError
from physis_ros.demo.calls import Calls
from physis_ros.drill.robot import JOINTS, DrillRobot

_STALL_S = 2.0
_CLOCK_JUMP_S = 100.0


@dataclass(frozen=True)
class Scene:
    """What faults are done to.

    Attributes:
        robot: the robot of the drill.
        calls: calls services, and spins.
        policy_pid: process of `wam_node`.
    """

    robot: DrillRobot
    calls: Calls
    policy_pid: int


Action: TypeAlias = Callable[[Scene], object]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: for people.
        provoke: makes it happen.
        mend: ends it; a reset follows.
        stops: whether the robot must come to rest because of it.
        status: the diagnostic status that must name it; empty: none has to.
        words: what its message must contain.
    """

    name: str
    provoke: Action
    mend: Action
    stops: bool
    status: str
    words: str


def _nothing(scene: Scene) -> None:
    pass


def _call(service: str) -> Action:
    return lambda scene: scene.calls.call(Trigger, service, Trigger.Request())


def _set(name: str, value: object) -> Action:
    return lambda scene: setattr(scene.robot, name, value)


FAULTS = (
    Fault('camera frozen', lambda scene: scene.robot.frozen.add('front'),
          lambda scene: scene.robot.frozen.clear(), False, 'wam_node: sensor front', 'frozen'),
    Fault('camera gone', lambda scene: scene.robot.gone.add('front'),
          lambda scene: scene.robot.gone.clear(), True, 'wam_node: sensor front', 'stale'),
    Fault('joint NaN', _set('nan_joint', 'elbow_flex'), _set('nan_joint', ''), True,
          'wam_node: sensor joints', 'elbow_flex'),
    Fault('joint order changed', _set('order', JOINTS[::-1]), _set('order', JOINTS), False, '', ''),
    Fault('clock jump', lambda scene: _jump(scene.robot, _CLOCK_JUMP_S),
          lambda scene: _jump(scene.robot, -_CLOCK_JUMP_S), False, '', ''),
    Fault('engine worker killed', lambda scene: _kill_worker(scene.policy_pid), _nothing, True,
          'wam_node: node', 'stopped'),
    Fault('engine stalled 2 s', lambda scene: _stall_worker(scene.policy_pid, scene.calls),
          _nothing, True, 'wam_node: node', 'stopped'),
    Fault('reset in mid-chunk', _call('/wam_node/reset'), _nothing, False, '', ''),
    Fault('stop request', _call('/wam_node/stop_request'), _nothing, True, 'wam_node: node',
          'stop requested'),
    Fault('subscriber gone', lambda scene: scene.robot.leave(), lambda scene: scene.robot.listen(),
          False, '', ''),
)
"""All faults, in the order in which they are drilled."""


def chosen_faults(parts: Sequence[str]) -> list[Fault]:
    """The faults whose names contain any of the parts; all, where there are none.

    Raises:
        InputError: a part that no name contains; tells the names.
    """
    for part in parts:
        if not part.strip() or not any(part in fault.name for fault in FAULTS):
            raise InputError(f'--only: no fault is called `{part}`; there are '
                             f'{", ".join(fault.name for fault in FAULTS)}')
    return [fault for fault in FAULTS
            if not parts or any(part in fault.name for part in parts)]


def _jump(robot: DrillRobot, seconds: float) -> None:
    robot.clock_offset_ns += round(seconds * 1e9)


def _kill_worker(policy_pid: int) -> None:
    _signal_worker(policy_pid, signal.SIGKILL)


def _signal_worker(policy_pid: int, number: signal.Signals) -> int:
    """Send a signal to one worker process of the engine; returns its id."""
    worker = workers(policy_pid)[0]
    os.kill(worker, number)
    return worker


def _stall_worker(policy_pid: int, calls: Calls) -> None:
    """Stop a worker for a while, as swapping or a debugger would."""
    worker = _signal_worker(policy_pid, signal.SIGSTOP)
    calls.spin(_STALL_S)
    try:
        os.kill(worker, signal.SIGCONT)
    except ProcessLookupError:
        return  # the engine has replaced it meanwhile


def workers(policy_pid: int, limit_s: float = 30.0) -> list[int]:
    """The worker processes of an engine: the grandchildren of its node.

    Raises:
        PhysisError: there are none within the limit.
    """
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        found = [worker for server in _children(policy_pid) for worker in _children(server)]
        if found:
            return sorted(found)
        time.sleep(0.1)
    raise PhysisError(f'process {policy_pid} has no worker processes')


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f'/proc/{pid}/task').glob('*/children'):
        try:
            found.extend(int(child) for child in tasks.read_text().split())
        except OSError:
            continue  # the thread has ended
    return found
