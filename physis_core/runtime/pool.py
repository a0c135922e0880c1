"""The host processes of an engine: started, asked, watched, replaced.

Nothing here knows of chunks.  A host that dies, is stopped by a signal, or no longer beats is
reported once; :meth:`HostPool.replace` starts a fresh one in its place.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, popen_forkserver, process, resource_tracker, spawn
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

from physis_core import errors
from physis_core.errors import PhysisError, WorkerLost
from physis_core.runtime.bell import Bell
from physis_core.runtime.boards import ControlBoard
from physis_core.runtime.host import HostSetup, run_host
from physis_core.units import NS_PER_S

_START_TIMEOUT_S = 60.0
_REPLY_TIMEOUT_S = 10.0
_SILENT_NS = 800_000_000
_STARVED_NS = 20 * _SILENT_NS
_NS_PER_TICK = NS_PER_S // os.sysconf('SC_CLK_TCK')
_MAIN_MODULE = ('init_main_from_name', 'init_main_from_path')


def _preparation_data(name: str) -> dict[str, Any]:
    """What a new process is told, but for the caller's main module, which no host needs.

    Importing it there would run a script that has no ``if __name__ == '__main__'`` once more.
    """
    return {key: value for key, value in spawn.get_preparation_data(name).items()
            if key not in _MAIN_MODULE}


_SERVER = forkserver.ForkServer()  # for hosts alone: others of the caller's keep their Ctrl-C
_SERVER.set_forkserver_preload(['physis_core.runtime.host'])


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put Ctrl-C off: a half started process would complain of what it was not told.

    Ctrl-C goes to all processes of a terminal.  What starts in here inherits the mask, so that the
    fork server and the hosts are silent about it from their first moment on, also while they
    import; the caller ends them.  The mask alone does not spare the caller: any other thread, of a
    numerical library for one, takes the signal for it.
    """
    resource_tracker.ensure_running()  # before: its start ends with SIGINT unblocked
    told: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    is_ours = handler is not None and threading.current_thread() is threading.main_thread()
    if is_ours:
        signal.signal(signal.SIGINT, lambda number, _: told.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_ours:
            signal.signal(signal.SIGINT, handler)
        if told:
            signal.raise_signal(signal.SIGINT)


class _Launch(popen_forkserver.Popen):
    """The launch of the standard library with our fork server and preparation data."""

    _launch = FunctionType(vars(popen_forkserver.Popen)['_launch'].__code__, {
        **vars(popen_forkserver),
        'forkserver': SimpleNamespace(**{
            **vars(forkserver), 'connect_to_new_process': _SERVER.connect_to_new_process}),
        'spawn': SimpleNamespace(get_preparation_data=_preparation_data)})


class _Process(ForkServerProcess):
    """A process that does not import the caller's main module."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        _STARTED.add(process_obj)
        with _undisturbed():
            return _Launch(process_obj)


_STARTED: weakref.WeakSet[_Process] = weakref.WeakSet()
# A fork of the caller ends its children when it ends; ours are not its children.
os.register_at_fork(after_in_child=lambda: vars(process)['_children'].difference_update(_STARTED))


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
        self._ended = False  # by us
        self._asked = 0
        self._suspected: tuple[int, int] | None = None  # since when, and its CPU time then
        board.requests[setup.index] = 0
        board.heartbeat_ns[setup.index] = time.monotonic_ns()
        self._process = _Process(
            target=run_host, args=(setup.to_json(), control, faults), daemon=True,
            name=f'physis-host-{setup.index}')
        self._process.start()
        self._pid = self._process.pid or 0
        self._handle = _handle_of(self._pid)
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
        self.await_reply(0, _START_TIMEOUT_S)
        self._board.heartbeat_ns[self.setup.index] = time.monotonic_ns()
        self._beats = True

    def request(self, name: str, attachment: bytes = b'', **arguments: Any) -> None:
        """Ask for something and wait until it is done.

        Raises:
            PhysisError: what went wrong there.
            WorkerLost: it ended or took too long.
        """
        self.await_reply(self.send(name, attachment, **arguments))

    def send(self, name: str, attachment: bytes = b'', **arguments: Any) -> int:
        """Ask without waiting; returns the number of the request.

        Raises:
            WorkerLost: it has ended.
        """
        try:
            self._control.send_bytes(json.dumps({'request': name, **arguments}).encode())
            self._control.send_bytes(attachment)
        except OSError as error:
            raise WorkerLost(f'{self._who()} is gone: {error}') from error
        self._asked += 1
        self._board.requests[self.setup.index] = self._asked
        self._bell.ring()
        return self._asked

    def await_reply(self, number: int, timeout_s: float = _REPLY_TIMEOUT_S) -> None:
        """Wait for the answer to a request; those to earlier ones no longer matter.

        Raises:
            PhysisError: what went wrong there.
            WorkerLost: it ended or took too long.
        """
        until_s = time.monotonic() + timeout_s
        reply: dict[str, Any] = {'number': -1}
        while reply['number'] != number:
            while not self._control.poll(0.05):
                trouble = self.trouble(time.monotonic_ns())
                if trouble is None and time.monotonic() > until_s:
                    trouble = f'gave no answer within {timeout_s} s'
                if trouble is not None:
                    raise WorkerLost(f'{self._who()} {trouble}')
            try:
                reply = json.loads(self._control.recv_bytes())
            except (EOFError, OSError) as error:
                raise WorkerLost(f'{self._who()} ended') from error
        if 'kind' in reply:
            raise getattr(errors, reply['kind'], PhysisError)(reply['text'])

    def _who(self) -> str:
        return f'host process {self.setup.index} (pid {self.pid})'

    def read_faults(self) -> list[dict[str, Any]]:
        """Streams that this host had to end: ``stream epoch kind text``."""
        reports = []
        with contextlib.suppress(EOFError, OSError):  # it has ended: trouble() says so
            while self._faults.poll():
                reports.append(json.loads(self._faults.recv_bytes()))
        return reports

    def trouble(self, now_ns: int) -> str | None:
        """Why this host cannot be relied on; None: it can."""
        if self._ended:
            return 'did not start'
        if not self._process.is_alive():
            return f'ended with exit code {self._process.exitcode}'
        if not self._beats:
            vitals = _Vitals.of(self.pid)
            return 'is stopped by a signal' if vitals is not None and vitals.stopped else None
        silent_ns = now_ns - int(self._board.heartbeat_ns[self.setup.index])
        if silent_ns < _SILENT_NS // 4:
            self._suspected = None
            return None
        vitals = _Vitals.of(self.pid)
        if vitals is None:
            return 'is gone'
        if vitals.stopped:
            return 'is stopped by a signal'
        self._suspected = self._suspected or (now_ns, vitals.cpu_ns)
        since_ns, cpu_ns = self._suspected
        if silent_ns < _SILENT_NS or now_ns - since_ns < _SILENT_NS // 2:
            return None  # or nobody has looked for long enough to tell
        starved = vitals.runnable and 2 * (vitals.cpu_ns - cpu_ns) < now_ns - since_ns
        if starved and silent_ns < _STARVED_NS:  # it wants to run and others have the CPUs
            return None
        return (f'has been silent for {silent_ns / NS_PER_S:.2f} s; if its batches may take that '
                f'long, raise `stall_s` ({self.setup.stall_ns / NS_PER_S:g})')

    def end(self, timeout_s: float) -> None:
        """Let it end by itself for a while, then kill it.  Returns when it is gone."""
        if self._ended:
            return
        self._ended = True
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):  # it only looked ended: its parent has
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = None
        self._control.close()
        self._faults.close()


def _handle_of(pid: int) -> int | None:
    """A descriptor of a process that no later one of the same number answers to; None: it is gone.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


class HostPool:
    """All host processes of an engine."""

    def __init__(self, setups: Sequence[HostSetup], board: ControlBoard) -> None:
        self._context = multiprocessing.get_context('forkserver')
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

    def request_all(self, name: str, arguments: Mapping[int, Mapping[str, Any]]) -> None:
        """Ask several hosts at the same time and wait until all are done.

        Raises:
            PhysisError: the first thing that went wrong.
            WorkerLost: one ended or took too long.
        """
        failed: PhysisError | None = None
        asked = {}
        for host, values in arguments.items():
            try:
                asked[host] = self.hosts[host].send(name, **values)
            except WorkerLost as error:
                failed = failed or error
        for host, number in asked.items():
            try:
                self.hosts[host].await_reply(number)
            except PhysisError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def replace(self, index: int) -> None:
        """Kill a host and start a fresh one in its place; returns when it is ready.

        Raises:
            PhysisError: what went wrong there; nothing runs in its place.
            WorkerLost: it ended or took too long; nothing runs in its place.
        """
        host = self.hosts[index]
        host.end(0.0)
        fresh = self.hosts[index] = self._start(host.setup)
        try:
            fresh.await_start()
        except BaseException:
            fresh.end(0.0)
            raise

    def close(self, timeout_s: float = 1.0) -> None:
        """End all hosts."""
        for host in self.hosts:
            with contextlib.suppress(WorkerLost):
                host.send('stop')
        for host in self.hosts:
            host.end(timeout_s)


class _Vitals(NamedTuple):
    """What the kernel says of a process: whether it wants to run, and for how long it has."""

    stopped: bool
    runnable: bool  # or waiting for memory or disk
    cpu_ns: int

    @classmethod
    def of(cls, pid: int) -> _Vitals | None:
        """Of all its threads together; None: it is gone."""
        states: set[str] = set()
        ticks = 0
        try:
            for thread in Path(f'/proc/{pid}/task').iterdir():
                fields = (thread / 'stat').read_text().rpartition(')')[2].split()
                states.add(fields[0])
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            return None
        return cls(not states.isdisjoint('Tt'), not states.isdisjoint('RD'), ticks * _NS_PER_TICK)


def available_cpus() -> list[int]:
    """The CPUs this process may use."""
    return sorted(os.sched_getaffinity(0))
