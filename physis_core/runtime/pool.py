"""The host processes of an engine: started, asked, watched, replaced.

Nothing here knows of chunks.  A host that dies, is stopped by a signal, or no longer beats is
reported once; :meth:`HostPool.replace` starts a fresh one in its place.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from physis_core import errors
from physis_core.errors import PhysisError, WorkerLost
from physis_core.runtime.bell import Bell
from physis_core.runtime.boards import ControlBoard
from physis_core.runtime.host import HostSetup, run_host
from physis_core.units import NS_PER_S

_START_TIMEOUT_S = 60.0
_REPLY_TIMEOUT_S = 10.0
_SILENT_NS = 800_000_000


class HostProcess:
    """One host process and the pipes to it."""

    def __init__(self, context: ForkServerContext, setup: HostSetup, board: ControlBoard,
                 bell: Bell) -> None:
        self.setup = setup
        self._board = board
        self._bell = bell
        self._beats = False  # not before it is ready: a slow start is not silence
        self._control, control = context.Pipe()
        self._faults, faults = context.Pipe(duplex=False)
        board.requests[setup.index] = 0
        board.heartbeat_ns[setup.index] = time.monotonic_ns()
        self._process: BaseProcess = context.Process(
            target=run_host, args=(setup.to_json(), control, faults), daemon=True,
            name=f'physis-host-{setup.index}')
        self._process.start()
        self._pid = self._process.pid or 0
        control.close()
        faults.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._pid

    def await_start(self) -> None:
        """Wait until its devices are ready.

        Raises:
            PhysisError: what went wrong there.
            WorkerLost: it ended or took too long.
        """
        self._take_reply(self._control, _START_TIMEOUT_S)
        self._beats = True

    def request(self, name: str, attachment: bytes = b'', **arguments: Any) -> None:
        """Ask for something and wait until it is done.

        Raises:
            PhysisError: what went wrong there.
            WorkerLost: it ended or took too long.
        """
        self.send(name, attachment, **arguments)
        self._take_reply(self._control, _REPLY_TIMEOUT_S)

    def send(self, name: str, attachment: bytes = b'', **arguments: Any) -> None:
        """Ask without waiting."""
        try:
            self._control.send_bytes(json.dumps({'request': name, **arguments}).encode())
            self._control.send_bytes(attachment)
        except OSError as error:
            raise WorkerLost(f'host process {self.setup.index} (pid {self.pid}) is gone: '
                             f'{error}') from error
        self._board.requests[self.setup.index] += 1
        self._bell.ring()

    def _take_reply(self, control: Connection, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while not control.poll(0.05):
            trouble = self.trouble(time.monotonic_ns())
            if trouble is None and time.monotonic() > until_s:
                trouble = f'gave no answer within {timeout_s} s'
            if trouble is not None:
                raise WorkerLost(f'host process {self.setup.index} (pid {self.pid}) {trouble}')
        try:
            reply = json.loads(control.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerLost(f'host process {self.setup.index} (pid {self.pid}) ended') from error
        if reply:
            raise getattr(errors, reply['kind'], PhysisError)(reply['text'])

    def read_faults(self) -> list[dict[str, Any]]:
        """Streams that this host had to end: ``stream epoch kind text``."""
        reports = []
        with contextlib.suppress(EOFError, OSError):  # it has ended: trouble() says so
            while self._faults.poll():
                reports.append(json.loads(self._faults.recv_bytes()))
        return reports

    def trouble(self, now_ns: int) -> str | None:
        """Why this host cannot be relied on; None: it can."""
        if not self._process.is_alive():
            return f'ended with exit code {self._process.exitcode}'
        if not self._beats:
            return None
        silent_ns = now_ns - int(self._board.heartbeat_ns[self.setup.index])
        if silent_ns > _SILENT_NS:
            return f'has been silent for {silent_ns / NS_PER_S:.2f} s'
        if silent_ns > _SILENT_NS // 4 and _is_stopped(self.pid):
            return 'is stopped by a signal'
        return None

    def end(self, timeout_s: float) -> None:
        """Let it end by itself for a while, then kill it.  Returns when it is gone."""
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._control.close()
        self._faults.close()


class HostPool:
    """All host processes of an engine."""

    def __init__(self, setups: Sequence[HostSetup], board: ControlBoard) -> None:
        self._context = multiprocessing.get_context('forkserver')
        self._context.set_forkserver_preload(['physis_core.runtime.host'])
        self._board = board
        self._bells = [Bell(board.bells, setup.index, ringer=0) for setup in setups]
        self.hosts: list[HostProcess] = []
        try:
            for setup in setups:
                self.hosts.append(self._start(setup))
            for host in self.hosts:
                host.await_start()
        except BaseException:
            self.close(0.0)
            raise

    def _start(self, setup: HostSetup) -> HostProcess:
        return HostProcess(self._context, setup, self._board, self._bells[setup.index])

    def wake(self, host: int) -> None:
        """Have a host look at its links."""
        self._bells[host].ring()

    def replace(self, index: int) -> None:
        """Kill a host and start a fresh one in its place; returns when it is ready."""
        host = self.hosts[index]
        host.end(0.0)
        self.hosts[index] = self._start(host.setup)
        self.hosts[index].await_start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End all hosts."""
        for host in self.hosts:
            with contextlib.suppress(WorkerLost):
                host.send('stop')
        for host in self.hosts:
            host.end(timeout_s)


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped (state T): by SIGSTOP, a debugger or a terminal."""
    try:
        status = Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return False
    return status.rpartition(')')[2].split()[0] in ('T', 't')


def available_cpus() -> list[int]:
    """The CPUs this process may use."""
    return sorted(os.sched_getaffinity(0))
