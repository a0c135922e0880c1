"""Starting the described processes, watching them, and stopping all of them again.

Every child runs on a leash (`physis_ros.demo.leash`) in a session of its own: Ctrl-C reaches the
parent alone, which then stops the children in order; whatever a child started goes with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from physis_core.errors import PhysisError
from physis_ros.demo.leash import PARENT_VARIABLE
from physis_ros.deployment import NodeProcess

_GRACE_S = 15.0
_POLL_S = 0.02
_LOG_LINES = 15
# A child finds ROS for itself; the parent's traces of having done so would stop it.
_NOT_INHERITED = ('_ROS_WHEELS_BOOTSTRAP_COMPLETE',)


class ProcessDied(PhysisError):
    """A process ended that should have gone on; the text has the end of its log."""


@dataclass(frozen=True)
class _Child:
    description: NodeProcess
    process: subprocess.Popen[bytes]
    log: Path


class ProcessGroup:
    """The running processes of a description; use it as a context manager."""

    def __init__(self, processes: Sequence[NodeProcess], environment: Mapping[str, str],
                 log_folder: Path) -> None:
        """Processes are started in their order, and stopped in the reverse order."""
        self._descriptions = tuple(processes)
        self._environment = {
            **{key: value for key, value in os.environ.items() if key not in _NOT_INHERITED},
            **environment, PARENT_VARIABLE: str(os.getpid())}
        self._log_folder = log_folder
        self._children: list[_Child] = []

    def __enter__(self) -> ProcessGroup:
        self._log_folder.mkdir(parents=True, exist_ok=True)
        try:
            for description in self._descriptions:
                self._children.append(self._start(description))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    def pids(self) -> dict[str, int]:
        """Process ids by node name."""
        return {child.description.node: child.process.pid for child in self._children}

    def check(self) -> None:
        """Raise `ProcessDied` if a process has ended."""
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                raise ProcessDied(
                    f'{child.description.node} ended with {_exit_text(code)}; the end of '
                    f'{child.log}:\n{_tail(child.log)}')

    def stop(self) -> None:
        """Stop every process, and everything these have started, within seconds."""
        for child in reversed(self._children):
            with suppress(ProcessLookupError):
                child.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(_GRACE_S)
            _kill_session(child.process.pid)
            child.process.wait()
        self._children.clear()

    def _start(self, description: NodeProcess) -> _Child:
        log = self._log_folder / f'{description.node}.log'
        with log.open('wb') as sink:
            process = subprocess.Popen(
                command(description), env=self._environment, stdin=subprocess.DEVNULL,
                stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
        return _Child(description, process, log)


def command(description: NodeProcess) -> list[str]:
    """The command line of one process."""
    arguments = ['-r', f'__node:={description.node}']
    for file in description.parameter_files:
        arguments += ['--params-file', str(file)]
    for name, value in description.parameters.items():
        arguments += ['-p', f'{name}:={json.dumps(value)}']
    return [sys.executable, '-m', 'physis_ros.demo.leash', description.module,
            '--ros-args', *arguments]


def _kill_session(session: int) -> None:
    """Kill whatever is left of a child's process group, and see it gone."""
    deadline = time.monotonic() + _GRACE_S
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(session, signal.SIGKILL)
            time.sleep(_POLL_S)


def _exit_text(code: int) -> str:
    return f'exit code {code}' if code >= 0 else f'signal {signal.Signals(-code).name}'


def _tail(log: Path) -> str:
    lines = log.read_text(errors='replace').splitlines()[-_LOG_LINES:]
    return '\n'.join(f'    {line}' for line in lines)
