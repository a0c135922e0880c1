"""The engine: runs plans on host processes, one chunk after the other, at a steady beat.

A chunk *enters* in :meth:`Engine._release`, *moves* from device to device in
:meth:`physis_core.runtime.device.Device._hand_on`, and *leaves* in :meth:`Engine._collect`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from physis_core import errors
from physis_core.errors import InputError, Refused, StreamError, WorkerLost
from physis_core.planning.plan import Plan
from physis_core.runtime.bell import Bell, precise_sleeps
from physis_core.runtime.boards import CLOSED, ControlBoard, ObservationBoard, check_arrays
from physis_core.runtime.chunk_log import ChunkLog
from physis_core.runtime.descriptor import Descriptor, EdgeAddress, Publication
from physis_core.runtime.device_memory import DeviceProcess
from physis_core.runtime.host import DeviceSetup, HostSetup
from physis_core.runtime.packets import ChunkState, HeaderCodec
from physis_core.runtime.policies import policy
from physis_core.runtime.pool import HostPool, available_cpus
from physis_core.runtime.provision import Provision
from physis_core.runtime.restarts import Restarts
from physis_core.runtime.stream import FIRST_EPOCH, FinishedChunk, Stream, StreamOptions
from physis_core.runtime.telemetry import EdgeMeter, StageLog
from physis_core.runtime.virtual import VirtualModel
from physis_core.runtime.wiring import LinkKey, Wiring
from physis_core.runtime.workload import Workload, description_of, workload_to_json
from physis_core.units import ns_from_s, s_from_ns

__all__ = ['Engine', 'EngineOptions', 'FinishedChunk', 'Stream', 'StreamOptions']

_SUPERVISE_NS = 50_000_000
_IDLE_NS = 50_000_000
_RECOVERY_TIMEOUT_S = 60.0
_OPEN_TRIES = 3
_LONGEST_STALL_S = 86_400.0
_MOST = 10 ** 6
_MOST_SLOTS = 10_000
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineOptions:
    """How an engine uses its machine.

    Attributes:
        pin: give each host process a CPU of its own, where there are enough.
        spin: looks at the doorbell before a host with a real device sleeps: a shorter hand-over
            for some tens of microseconds of CPU each time.
        virtual_hosts: processes that virtual devices share.
        stall_s: longest that a host may work without looking up, which it does after every few
            batches, before it counts as lost [s].
        policy: what a device runs next, one of :data:`~physis_core.runtime.policies.POLICIES`.
        compute: what devices are: `cpu`, or `cuda`, where device ``i`` is GPU ``i`` of this host.
    """

    pin: bool = True
    spin: int = 100
    virtual_hosts: int = 2
    stall_s: float = 10.0
    policy: str = 'deadline'
    compute: str = 'cpu'

    def __post_init__(self) -> None:
        if self.compute not in ('cpu', 'cuda'):
            raise InputError(f'compute is `{self.compute}`; choose cpu or cuda')
        policy(self.policy)
        if not (isinstance(self.stall_s, int | float) and 0 < self.stall_s <= _LONGEST_STALL_S):
            raise InputError(f'stall_s is {self.stall_s!r}; it is above 0 and at most '
                             f'{_LONGEST_STALL_S:g}')
        for name, least in (('spin', 0), ('virtual_hosts', 1)):
            value = getattr(self, name)
            if not (isinstance(value, int) and least <= value <= _MOST):
                raise InputError(f'{name} is {value!r}; it is a whole number from {least} to '
                                 f'{_MOST}')


class Engine:
    """Runs streams of one workload.  Use it as a context manager.

    All methods may be called from any thread.  One thread of the engine lets chunks in, collects
    what is finished and watches the hosts; ``_lock`` guards what it shares with the callers.  A
    second one cleans up after faults.  ``_control_lock`` keeps set-up requests to the hosts apart
    without stopping the first.
    """

    def __init__(self, workload: Workload, plans: Plan | Sequence[Plan] | Provision,
                 streams: int = 1, options: EngineOptions | None = None) -> None:
        """Start the host processes.

        Args:
            workload: the model to run.
            plans: the plan of every stream slot, or one plan for ``streams`` slots, or room for
                streams whose plans come when they are opened.
            streams: number of slots, where one plan is given.
            options: how to use the machine.

        Raises:
            PlanError: a plan is not for this model.
            WorkerLost: a host did not start.
        """
        self._workload = workload
        self._description = description_of(workload)
        self._plans: list[Plan] = []
        if isinstance(plans, Provision):
            self._provision = plans
        else:
            self._plans = _plans_of(plans, streams)
            self._provision = Provision.for_plans(self._description.graph, self._plans)
        self._options = options or EngineOptions()
        self._devices = len(self._provision.devices)
        self._check_gpus()
        self._host_of = self._assign_hosts()
        hosts = max(self._host_of) + 1
        self._board = ControlBoard.create(hosts, self._devices, self._provision.slots)
        self._chunk_log = ChunkLog.create()
        self._logs = [StageLog.create() for _ in range(self._devices)]
        self._codec = HeaderCodec(self._description.graph.steps)
        self._bell = Bell(self._board.bells, self._board.engine_bell, ringer=0)
        self._wiring = Wiring(
            self._description, self._provision, self._host_of,
            not isinstance(workload, VirtualModel), self._codec, self._waker)
        self._streams: dict[int, Stream] = {}
        self._epochs = [FIRST_EPOCH - 1] * self._provision.slots
        self._lock = threading.RLock()
        self._control_lock = threading.RLock()
        self._stopping = False
        self._supervised_ns = 0
        self._pid = os.getpid()
        try:
            self._pool = HostPool([self._host_setup(index) for index in range(hosts)], self._board)
        except BaseException:
            self._close_blocks()
            raise
        self._recoveries: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._recovering: set[int] = set()
        self._cannot_start: dict[int, str] = {}  # by host, why; under _control_lock
        self._restarts = [Restarts(time.monotonic_ns()) for _ in range(hosts)]
        self._rests_until_ns = [0] * hosts  # a lost host is not looked at before
        self._whole = threading.Event()  # set while no host is being replaced
        self._whole.set()
        self._thread = threading.Thread(target=self._loop, name='physis-engine', daemon=True)
        self._recovery = threading.Thread(target=self._recover, name='physis-recovery',
                                          daemon=True)
        self._thread.start()
        self._recovery.start()
        self._publication = Publication()
        self._publish()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # -- for users ---------------------------------------------------------------------------------

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the hosts."""
        return [host.pid for host in self._pool.hosts]

    def open_stream(self, options: StreamOptions | None = None, plan: Plan | None = None
                    ) -> Stream:
        """Open a stream in a free slot, with ``plan`` or with that slot's own.

        Waits for hosts that are being replaced after a fault, or that are found lost meanwhile.

        Raises:
            InputError: the prompt is not what the model takes, or no plan is known.
            PlanError: the plan is for another model.
            Refused: no slot is free, or a device has no room; nothing was changed.
            WorkerLost: hosts are lost again and again.
        """
        options = options or StreamOptions()
        if os.getpid() != self._pid:
            raise StreamError(f'the engine belongs to process {self._pid}, this is a fork of it; '
                              'start an engine here')
        check_arrays('prompt', options.prompt, self._description.prompt)
        if plan is not None:
            self._provision.check(plan)
        elif not self._plans:
            raise InputError('this engine was started without plans; give the stream one')
        tries = 0
        while True:
            self._whole.wait(_RECOVERY_TIMEOUT_S)
            try:
                return self._open_stream(options, plan)
            except WorkerLost:
                tries += 1
                if tries == _OPEN_TRIES:
                    raise
                time.sleep(2 * s_from_ns(_SUPERVISE_NS))  # until the loop has seen it too

    def _open_stream(self, options: StreamOptions, plan: Plan | None) -> Stream:
        with self._control_lock:
            self._raise_if_closed()
            for reason in list(self._cannot_start.values()):
                raise WorkerLost(reason)
            slot = self._free_slot()
            plan = plan or self._plans[slot]
            board = ObservationBoard.create(self._description.observation)
            stream = Stream(slot, options, plan, board, bool(self._description.observation),
                            self._change)
            try:
                self._connect(plan)
                self._open_on_hosts(stream, plan)
            except BaseException:
                board.block.close()
                raise
            with self._lock:
                self._streams[slot] = stream
                self._board.yields[slot] = False
                self._begin_epoch(stream)
            self._bell.ring()
            return stream

    def give_way(self, stream: Stream, yields: bool, keep_one_in: int = 1) -> None:
        """Have a stream's tasks run after those of others, and let in one chunk of so many."""
        with self._lock:
            if self._streams.get(stream.slot) is stream:
                self._board.yields[stream.slot] = yields
                stream.keep_one_in = keep_one_in

    @property
    def chunk_log(self) -> ChunkLog:
        """What became of the latest chunks of all streams."""
        return self._chunk_log

    @property
    def provision(self) -> Provision:
        """What was set aside at the start."""
        return self._provision

    def stage_logs(self) -> list[StageLog]:
        """What each device did lately, by device."""
        return list(self._logs)

    def device_processes(self) -> list[DeviceProcess]:
        """The process and the memory of each device, by device."""
        pids = self.worker_pids
        return [DeviceProcess(pids[host], weights, kv) for host, (weights, kv, _) in zip(
            self._host_of, self._board.memory.tolist(), strict=True)]

    def edge_meters(self) -> dict[LinkKey, EdgeMeter]:
        """What each link carried so far, by its ends (-1: the engine) and kind."""
        with self._lock:
            return self._wiring.meters

    def close(self) -> None:
        """End all streams and all processes.  Safe to call twice; a forked child does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._bell.ring()
        self._recoveries.put(None)
        self._thread.join()
        self._recovery.join()
        with self._control_lock:
            for stream in self._streams.values():
                stream.end(StreamError('the engine was closed'))
                stream.board.block.close()
            self._streams.clear()
            self._pool.close()
            self._publication.remove()
            self._close_blocks()

    def _close_blocks(self) -> None:
        self._wiring.close()
        for block in (self._board.block, self._chunk_log.block,
                      *(log.block for log in self._logs)):
            block.close()

    # -- set-up ------------------------------------------------------------------------------------

    def _assign_hosts(self) -> tuple[int, ...]:
        """The host process of every device."""
        if isinstance(self._workload, VirtualModel):
            hosts = min(self._devices, max(1, self._options.virtual_hosts))
            return tuple(device * hosts // self._devices for device in range(self._devices))
        return tuple(range(self._devices))

    def _check_gpus(self) -> None:
        """Raise where there are not the GPUs that a plan and the options take for granted."""
        if self._provision.link == 'nccl' and self._options.compute != 'cuda':
            raise InputError('link `nccl` is between GPUs; compute on `cuda` (EngineOptions), or '
                             'give the plan link `gloo` or `shm`')
        gpus = torch.cuda.device_count() if self._options.compute == 'cuda' else self._devices
        if gpus < self._devices:
            raise InputError(f'the plan has {self._devices} devices and this host has {gpus} GPUs '
                             'that torch can use; plan for fewer devices, or compute on `cpu`')

    def _host_setup(self, index: int) -> HostSetup:
        cpus = available_cpus()
        hosts = max(self._host_of) + 1
        pinned = self._options.pin and 1 < hosts <= len(cpus)
        return HostSetup(
            index=index, hosts=hosts, devices=self._devices, streams=self._provision.slots,
            host_of=self._host_of, board_address=self._board.block.address,
            workload=workload_to_json(self._workload), batch=self._provision.batch,
            policy=self._options.policy, times_us=self._provision.times_us,
            spin=0 if isinstance(self._workload, VirtualModel) else self._options.spin,
            stall_ns=ns_from_s(self._options.stall_s),
            cpu=cpus[index] if pinned else None,
            own=tuple(self._device_setup(device) for device in range(self._devices)
                      if self._host_of[device] == index))

    def _device_setup(self, device: int) -> DeviceSetup:
        own = self._provision.devices[device]
        return DeviceSetup(
            index=device, blocks=own.blocks, kv_entries=own.kv_entries, order=own.order,
            single_stage=own.single_stage, log_address=self._logs[device].block.address,
            place=f'cuda:{device}' if self._options.compute == 'cuda' else 'cpu')

    def _free_slot(self) -> int:
        for stream in list(self._streams.values()):
            if stream.ended is not None:  # by a fault; its clean-up is still to come
                self._close_stream(stream, stream.ended, self._recovering)
        with self._lock:
            for slot in range(self._provision.slots):
                if slot not in self._streams:
                    return slot
            raise Refused(f'all {self._provision.slots} stream slots are in use; close a stream or '
                          'start the engine with more')

    def _open_on_hosts(self, stream: Stream, plan: Plan) -> None:
        """Prepare every host for a stream, or none."""
        inputs = dict(stream.options.prompt)
        prompt = safetensors.numpy.save(inputs) if inputs else b''
        # A stream that is let in as fast as it goes is on no timetable: oldest chunk first.
        prediction = plan.prediction if stream.period_ns else None
        board = stream.board.block.address if stream.needs_observation else ''
        asked: list[int] = []
        try:
            for host in self._hosts_of(plan):
                asked.append(host)
                self._pool.hosts[host].request(
                    'open', prompt, stream=stream.slot, plan=plan.to_json(),
                    seed=stream.options.seed,
                    response_ns=prediction.response_us * 1000 if prediction else 0, board=board)
        except (StreamError, Refused, InputError):
            for host in asked:  # the last one too: it may have opened and answered too late
                with contextlib.suppress(WorkerLost):
                    self._pool.hosts[host].request('close', stream=stream.slot)
            raise

    def _hosts_of(self, plan: Plan) -> list[int]:
        return sorted({self._host_of[rank.device] for rank in plan.ranks})

    # -- links -------------------------------------------------------------------------------------

    def _connect(self, plan: Plan) -> None:
        """Make the links that a plan needs and that do not exist yet."""
        fresh = self._wiring.missing(plan)
        try:
            with self._lock:
                links = [(self._wiring.hosts_of(key), asdict(self._wiring.make(key)))
                         for key in fresh]
            self._pool.request_all('connect', {
                host: {'links': [spec for hosts, spec in links if host in hosts]}
                for host in sorted({host for hosts, _ in links for host in hosts})})
        except BaseException:  # half of the ends may be made: make both anew next time
            with self._lock:
                self._wiring.forget(fresh)
            raise
        if fresh:
            self._publish()

    def _publish(self) -> None:
        """Let other processes of this user find the logs."""
        self._publication.write(Descriptor(
            pid=os.getpid(), model=self._description.name, steps=self._description.graph.steps,
            blocks=self._description.graph.blocks,
            worker_pids=tuple(self.worker_pids[host] for host in self._host_of),
            chunk_log=self._chunk_log.block.address,
            stage_logs=tuple(log.block.address for log in self._logs),
            memory=tuple(tuple(words) for words in self._board.memory.tolist()),
            edges=tuple(EdgeAddress(*key, meter.block.address)
                        for key, meter in self.edge_meters().items())))

    def _waker(self, device: int) -> Callable[[], None]:
        """Tell a device that a link has news."""
        attention, host = self._board.attention, self._host_of[device]

        def wake() -> None:
            attention[device] = 1
            self._pool.wake(host)
        return wake

    # -- the loop ----------------------------------------------------------------------------------

    def _loop(self) -> None:
        precise_sleeps()
        try:
            while not self._stopping:
                seen = self._bell.read()
                with self._lock:
                    served = self._collect()
                    next_ns = self._release()
                    for stream in served:  # last: who wakes now hardly waits for this thread
                        stream.hand_over()
                self._supervise()
                self._bell.wait(seen, min(next_ns - time.monotonic_ns(), _IDLE_NS))
        except BaseException as error:  # nobody may wait for a loop that is gone
            for stream in list(self._streams.values()):
                self._end_stream(stream, StreamError(
                    f'the engine loop failed with {type(error).__name__}: {error}'))
            raise

    def _release(self) -> int:
        """Let chunks in whose time has come; returns when the next one is due."""
        now_ns = time.monotonic_ns()
        next_ns = now_ns + _IDLE_NS
        for stream in self._streams.values():
            if stream.paused or (stream.needs_observation and not stream.board.newest_identity):
                continue
            while stream.next_release_ns <= now_ns:
                if not self._take_beat(stream, now_ns):
                    break
            if stream.next_release_ns > now_ns:
                next_ns = min(next_ns, stream.next_release_ns)
            else:
                stream.hold_back(now_ns)
        return next_ns

    def _take_beat(self, stream: Stream, now_ns: int) -> bool:
        """Let one chunk in, or none on this beat, and plan the next; False: there is no room.

        Lateness moves the beat, it does not pile up.
        """
        period_ns = stream.period_ns
        late = now_ns - stream.next_release_ns > period_ns
        release_ns = now_ns if late or not period_ns else stream.next_release_ns
        if stream.sheds_next:
            stream.shed += 1
        elif period_ns and stream.is_late(now_ns):
            stream.held_back += 1
        elif not stream.has_room or not self._send_token(stream, release_ns):
            return False
        stream.next_release_ns = release_ns + period_ns
        return True

    def _send_token(self, stream: Stream, release_ns: int) -> bool:
        """Let one chunk in; False: its first device has no place for it."""
        due_ns = release_ns + (stream.options.lead_ns or 0)
        state = ChunkState(stream.slot, stream.epoch, stream.released, 0, due_ns, release_ns,
                           due_ns, observation_ids=[-1] * self._description.graph.steps)
        entrance = self._wiring.entrances[stream.plan.device_of(0)]
        if not entrance.try_send(state, {}):
            return False
        entrance.announce()
        stream.enter(due_ns)
        return True

    def _collect(self) -> list[Stream]:
        """Take finished chunks from all exits; the streams that they are of."""
        served: list[Stream] = []
        for inlet in self._wiring.exits.values():
            while (message := inlet.pull()) is not None:
                state = message.state
                stream = self._streams.get(state.stream)
                if (stream is not None and stream.epoch == state.epoch
                        and stream.ended is None):
                    stream.deliver(_finished(state, inlet.copies(message.slot)))
                    self._log_chunk(stream, state)
                    served.append(stream)
                inlet.release(message.slot)
        return served

    def _log_chunk(self, stream: Stream, state: ChunkState) -> None:
        options = stream.options
        self._chunk_log.append(
            state.stream, state.epoch, state.chunk, state.capture_ns, state.received_ns,
            state.release_ns, state.started_ns, state.finished_ns, state.due_ns,
            time.monotonic_ns(), options.lead_ns is not None, options.priority, stream.period_ns)

    # -- stream life -------------------------------------------------------------------------------

    def _begin_epoch(self, stream: Stream) -> None:
        self._epochs[stream.slot] += 1
        # Before the observation is forgotten: a device that misses it then knows why.
        self._board.epochs[stream.slot] = self._epochs[stream.slot]
        stream.restart(self._epochs[stream.slot])
        self._announce_reset(stream.plan)

    def _announce_reset(self, plan: Plan) -> None:
        """Have the devices of a plan drop what is no longer wanted."""
        self._board.resets[0] += 1
        for rank in plan.ranks:
            self._board.attention[rank.device] = 1
        for host in self._hosts_of(plan):
            self._pool.wake(host)

    def _change(self, stream: Stream, what: str) -> None:
        """A stream's wish: ``observed consumed pause resume reset close``."""
        if what == 'close':
            self._close_stream(stream, StreamError('the stream was closed'))
            return
        with self._lock:
            if what == 'reset':
                if stream.ended is not None:  # meanwhile; its slot may be another stream's
                    raise stream.ended
                self._begin_epoch(stream)
            if what in ('pause', 'resume'):
                stream.paused = what == 'pause'
            if what in ('resume', 'observed'):
                stream.next_release_ns = max(stream.next_release_ns, time.monotonic_ns())
        self._bell.ring()

    def _close_stream(self, stream: Stream, error: StreamError,
                      gone: Collection[int] = ()) -> None:
        """End a stream on all hosts but those that are gone, and free its slot."""
        self._end_stream(stream, error)
        with self._control_lock:
            if self._streams.get(stream.slot) is not stream:
                return
            for host in self._hosts_of(stream.plan):
                if host not in gone:
                    with contextlib.suppress(WorkerLost):  # the next supervision replaces it
                        self._pool.hosts[host].request('close', stream=stream.slot)
            with self._lock:
                del self._streams[stream.slot]
            stream.board.block.close()

    def _end_stream(self, stream: Stream, error: StreamError) -> None:
        """Stop a stream at once; its slot is freed later."""
        with self._lock:
            if self._streams.get(stream.slot) is stream and stream.ended is None:
                self._board.epochs[stream.slot] = CLOSED
                self._announce_reset(stream.plan)
            stream.end(error)

    # -- supervision -------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """End the streams of hosts that are in trouble and those that hosts report."""
        now_ns = time.monotonic_ns()
        if now_ns - self._supervised_ns < _SUPERVISE_NS:
            return
        self._supervised_ns = now_ns
        for index, host in enumerate(self._pool.hosts):
            if index in self._recovering or now_ns < self._rests_until_ns[index]:
                continue
            trouble = host.trouble(now_ns)
            if trouble is not None:
                self._lose_host(index, f'host process {index} (pid {host.pid}) with device '
                                f'{_ranges(self._devices_of(index))} {trouble}')
            else:
                self._take_faults(host.read_faults())

    def _lose_host(self, index: int, text: str) -> None:
        error = WorkerLost(text)
        self._recovering.add(index)
        self._whole.clear()
        for stream in self._streams_on(index):
            self._end_stream(stream, error)
        self._recoveries.put(functools.partial(self._replace_host, index, error))

    def _streams_on(self, host: int) -> list[Stream]:
        with self._lock:
            return [stream for stream in self._streams.values()
                    if host in self._hosts_of(stream.plan)]

    def _take_faults(self, reports: Sequence[Mapping[str, Any]]) -> None:
        for report in reports:
            stream = self._streams.get(report['stream'])
            if stream is not None and stream.epoch == report['epoch']:
                error = getattr(errors, report['kind'], StreamError)(report['text'])
                self._end_stream(stream, error)
                self._recoveries.put(functools.partial(self._close_stream, stream, error))

    def _recover(self) -> None:
        """The recovery thread: one clean-up after the other."""
        while (recovery := self._recoveries.get()) is not None:
            recovery()

    def _replace_host(self, index: int, error: WorkerLost) -> None:
        """Start a fresh host; the links of its devices are made anew when a stream needs them."""
        with self._control_lock:
            for stream in self._streams_on(index):  # with those that were just being opened
                self._close_stream(stream, error, self._recovering)
            devices = self._devices_of(index)
            with self._lock:
                self._wiring.forget_devices(devices)
            for other, host in enumerate(self._pool.hosts):
                if other not in self._recovering:
                    with contextlib.suppress(WorkerLost):  # the next supervision replaces it
                        host.request('disconnect', devices=devices)
            self._start_again(index, error)
            self._recovering.discard(index)
            if not self._recovering:
                self._whole.set()

    def _start_again(self, index: int, error: WorkerLost) -> None:
        """Start a fresh host; where that fails, or is for later, the next supervision sees it."""
        restarts = self._restarts[index]
        now_ns = time.monotonic_ns()
        wait_ns = restarts.wait_ns(now_ns, self._tasks_of(index))
        if wait_ns:
            self._rests_until_ns[index] = now_ns + wait_ns
            self._refuse_streams(index, f'{error}; {restarts.in_vain} starts in a row were in '
                                        f'vain, so the next waits {s_from_ns(wait_ns):.1f} s')
            return
        self._cannot_start.pop(index, None)
        failed = False
        try:
            self._pool.replace(index)
        except WorkerLost:
            pass
        except Exception as failure:  # it cannot be helped here, and may be in a moment
            failed = True
            self._refuse_streams(
                index, f'host process {index} cannot be started again: {failure}; trying again')
        restarts.started(time.monotonic_ns(), self._tasks_of(index), failed)

    def _refuse_streams(self, index: int, reason: str) -> None:
        """Have streams refused until it is started again; the first reason is the one to tell."""
        if index not in self._cannot_start:
            self._cannot_start[index] = reason
            _LOG.warning('%s', reason)

    def _tasks_of(self, index: int) -> int:
        """Tasks that the devices of a host ever did."""
        return sum(self._logs[device].total for device in self._devices_of(index))

    def _devices_of(self, host: int) -> list[int]:
        return [device for device, where in enumerate(self._host_of) if where == host]

    def _raise_if_closed(self) -> None:
        if self._stopping:
            raise StreamError('the engine was closed')


def _finished(state: ChunkState, outputs: Mapping[str, np.ndarray]) -> FinishedChunk:
    return FinishedChunk(
        stream=state.stream, epoch=state.epoch, chunk=state.chunk,
        outputs=outputs,
        capture_ns=state.capture_ns, received_ns=state.received_ns, release_ns=state.release_ns,
        started_ns=state.started_ns, finished_ns=state.finished_ns, due_ns=state.due_ns,
        observation_ids=tuple(state.observation_ids))


def _plans_of(plans: Plan | Sequence[Plan], streams: int) -> list[Plan]:
    """The plan of every stream slot."""
    if isinstance(plans, Plan):
        if not (isinstance(streams, int) and 1 <= streams <= _MOST_SLOTS):
            raise InputError(f'{streams!r} stream slots; an engine has from 1 to {_MOST_SLOTS}')
        return [plans] * streams
    given = list(plans) if isinstance(plans, Sequence) else [plans]
    strange = [plan for plan in given if not isinstance(plan, Plan)]
    if strange:
        raise InputError(f'{strange[0]!r} is no plan; `physis_core.planning.modes` makes them')
    return given


def _ranges(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f'{numbers[0]} to {numbers[-1]}'
