"""A host process: one real device, or several virtual ones.

It serves the engine's control messages between batches, wakes when a link has news, beats a heart
from a thread of its own, and ends when the engine ends, however that happens.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import safetensors.numpy
import torch

from physis_core.errors import PhysisError, StreamError, WorkerLost, told
from physis_core.models.registry import build
from physis_core.planning.plan import BatchRule, Plan
from physis_core.runtime.bell import Bell, precise_sleeps
from physis_core.runtime.boards import ControlBoard, Observation, ObservationBoard
from physis_core.runtime.cuda_graphs import CudaRecorder, GraphedBlocks
from physis_core.runtime.device import Device, raise_if_fatal
from physis_core.runtime.device_memory import resident_bytes, tensor_bytes
from physis_core.runtime.executor import Executor, ModelExecutor
from physis_core.runtime.kv_pool import KvPool
from physis_core.runtime.links.ends import LinkSpec, open_inlet, open_outlet
from physis_core.runtime.packets import HeaderCodec
from physis_core.runtime.policies import policy
from physis_core.runtime.stage_times import StageTimes
from physis_core.runtime.telemetry import StageLog
from physis_core.runtime.virtual import VirtualExecutor, VirtualModel
from physis_core.runtime.workload import description_of, workload_from_json
from physis_core.shared_block import SharedBlock
from physis_core.units import NS_PER_US

_LOG = logging.getLogger(__name__)

HEARTBEAT_NS = 50_000_000
# A receive waits on the GPU for a message that is still to come, and must not hold up the rest:
# no two streams share a hardware queue, and no kernel is loaded later, which waits for all others.
# NCCL meets on loopback, as all sockets here.
_GPU_ENVIRONMENT = {'CUDA_DEVICE_MAX_CONNECTIONS': '32', 'CUDA_MODULE_LOADING': 'EAGER',
                    'NCCL_SOCKET_IFNAME': 'lo'}
_LONGEST_SLEEP_NS = 50_000_000
# A thread takes up to this long to wake: it sleeps that much less before a timer, then looks on.
_WAKING_NS = 50_000


@dataclass(frozen=True)
class DeviceSetup:
    """What a device is given at its start; ``place`` is the torch device that it computes on."""

    index: int
    blocks: tuple[int, ...]
    kv_entries: int
    order: tuple[int, ...]
    single_stage: bool
    log_address: str
    place: str


@dataclass(frozen=True)
class HostSetup:
    """What a host process is given at its start; plain values, as JSON."""

    index: int
    hosts: int
    devices: int
    streams: int
    host_of: tuple[int, ...]
    board_address: str
    workload: str
    batch: BatchRule
    policy: str
    times_us: tuple[tuple[int, ...], ...]
    spin: int
    stall_ns: int
    cpu: int | None
    own: tuple[DeviceSetup, ...]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HostSetup:
        """The inverse of :meth:`to_json`."""
        data = json.loads(text)
        data['own'] = tuple(DeviceSetup(**{**own, 'blocks': tuple(own['blocks']),
                                           'order': tuple(own['order'])}) for own in data['own'])
        data['host_of'] = tuple(data['host_of'])
        data['batch'] = BatchRule(**data['batch'])
        data['times_us'] = tuple(map(tuple, data['times_us']))
        return cls(**data)


def run_host(setup_json: str, control: Connection, faults: Connection) -> None:
    """The main function of a host process; it ends in silence when the engine is gone."""
    with contextlib.suppress(BrokenPipeError):
        _run_host(setup_json, control, faults)


def _run_host(setup_json: str, control: Connection, faults: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_engine, name='physis-leash', daemon=True).start()
    precise_sleeps()
    torch.set_num_threads(1)
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')  # loopback, unless somebody chose otherwise
    setup = HostSetup.from_json(setup_json)
    if any(own.place.startswith('cuda') for own in setup.own):
        for name, value in _GPU_ENVIRONMENT.items():  # read when CUDA starts in this process
            os.environ.setdefault(name, value)
    if setup.cpu is not None:
        os.sched_setaffinity(0, {setup.cpu})
    try:
        host = Host(setup, control, faults)
    except Exception as error:  # a model is somebody else's code
        control.send_bytes(_reply(0, error))
        return
    gc.collect()
    gc.freeze()  # a full collection would look at all that was imported: 80 ms in mid-stream
    control.send_bytes(_reply(0, None))
    with torch.inference_mode():
        host.run()


class Host:
    """The devices of one process, and the loop that serves them."""

    def __init__(self, setup: HostSetup, control: Connection, faults: Connection) -> None:
        self._setup = setup
        self._control = control
        self._faults = faults
        self._board = ControlBoard(SharedBlock.attach(setup.board_address), setup.hosts,
                                   setup.devices, setup.streams)
        self._workload = workload_from_json(setup.workload)
        self._description = description_of(self._workload)
        self._codec = HeaderCodec(self._description.graph.steps)
        self._bells = [Bell(self._board.bells, index, setup.index + 1, setup.spin)
                       for index in range(setup.hosts + 1)]
        self._observations: dict[int, ObservationBoard] = {}
        self._devices = {own.index: self._make_device(own) for own in setup.own}
        self._board.memory[list(self._devices), 2] = resident_bytes()
        self._requests = 0
        self._running = True
        self._turn_ns = time.monotonic_ns()  # written by the loop, read by the heart

    # -- set-up ------------------------------------------------------------------------------------

    def _make_device(self, own: DeviceSetup) -> Device:
        graph = self._description.graph
        executor: Executor
        if isinstance(self._workload, VirtualModel):
            model = self._workload
            executor = VirtualExecutor(model, own.index)
            times = StageTimes(lambda block, batch: model.stage_ns(batch))
        else:
            executor = self._model_executor(own)
            times = StageTimes(self._expected_ns if self._setup.times_us else None)
        dispatcher = policy(self._setup.policy)(
            self._setup.batch, times.predict, [graph.step_block(stage) for stage in own.order])
        log = StageLog(SharedBlock.attach(own.log_address))
        return Device(own.index, graph, executor, dispatcher, self._board, log, times,
                      self._fault, single_stage=own.single_stage)

    def _model_executor(self, own: DeviceSetup) -> ModelExecutor:
        """Weights and KV on the torch device; there, where it is a GPU, blocks as graphs."""
        assert not isinstance(self._workload, VirtualModel)
        place = own.place
        if place.startswith('cuda'):
            torch.cuda.set_device(place)
        with torch.device(place):
            pool = KvPool(self._description.graph, self._description.kv_chunk, own.kv_entries,
                          place)
            before_bytes = tensor_bytes()
            model = build(self._workload, own.blocks)
        self._board.memory[own.index, :2] = tensor_bytes() - before_bytes, pool.nbytes
        if not place.startswith('cuda'):
            return ModelExecutor(model, pool, self._observe)
        blocks = GraphedBlocks(model, pool, place, CudaRecorder(place))
        blocks.prepare(own.blocks, self._setup.batch.max_batch)
        if blocks.refusal:
            _LOG.warning('device %d runs without CUDA graphs: %s', own.index, blocks.refusal)
        return ModelExecutor(model, pool, self._observe, place, blocks.run)

    def _expected_ns(self, block: int, batch: int) -> int:
        """What the profile says of a stage."""
        times_us = self._setup.times_us[block]
        return times_us[min(batch, len(times_us)) - 1] * NS_PER_US

    def _observe(self, stream: int) -> Observation | None:
        if not self._description.observation:  # the model watches nothing: it need not wait
            now_ns = time.monotonic_ns()
            return Observation(0, now_ns, now_ns, {})
        board = self._observations.get(stream)
        return board.read() if board is not None else None

    def _fault(self, stream: int, epoch: int, kind: str, text: str) -> None:
        self._faults.send_bytes(json.dumps(
            {'stream': stream, 'epoch': epoch, 'kind': kind, 'text': text}).encode())
        self._bells[-1].ring()

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop or the engine is gone."""
        threading.Thread(target=self._beat, daemon=True).start()
        bell = self._bells[self._setup.index]
        attention, own = self._board.attention.data, tuple(self._devices)
        timers: list[tuple[int, int]] = []
        wanted: dict[int, int] = {}
        while self._running:
            seen = bell.read()
            while self._running and self._requests != self._board.requests[self._setup.index]:
                self._serve_request()
            now_ns = self._turn_ns = time.monotonic_ns()
            due = {device for device in own if attention[device]}
            while timers and timers[0][0] <= now_ns:
                when_ns, device = heapq.heappop(timers)
                if wanted.get(device) == when_ns:
                    due.add(device)
            for device in due:
                attention[device] = 0
                when = self._devices[device].advance()
                if when is None:
                    wanted.pop(device, None)
                elif wanted.get(device) != when:
                    wanted[device] = when
                    heapq.heappush(timers, (when, device))
            if not due:
                next_ns = timers[0][0] - _WAKING_NS if timers else now_ns + _LONGEST_SLEEP_NS
                bell.wait(seen, min(next_ns - time.monotonic_ns(), _LONGEST_SLEEP_NS))

    def _beat(self) -> None:
        """Beat while the loop goes round: a stage that never ends stops the heart."""
        while True:
            now_ns = time.monotonic_ns()
            if now_ns - self._turn_ns < self._setup.stall_ns:
                self._board.heartbeat_ns[self._setup.index] = now_ns
            time.sleep(HEARTBEAT_NS / 1e9)

    # -- control -----------------------------------------------------------------------------------

    def _serve_request(self) -> None:
        self._requests += 1
        try:
            request = json.loads(self._control.recv_bytes())
            attachment = self._control.recv_bytes()
        except (EOFError, OSError):
            self._running = False
            return
        error: PhysisError | None = None
        try:
            getattr(self, f'_on_{request.pop("request")}')(attachment, **request)
        except PhysisError as caught:
            error = caught
        except OSError as caught:  # a request that the engine has given up waiting for
            error = WorkerLost(f'what the engine wanted shared is gone: {caught}')
        except Exception as caught:  # a model is somebody else's code
            raise_if_fatal(caught)
            error = StreamError(f'the model failed with {told(caught)}')
        self._control.send_bytes(_reply(self._requests, error))

    def _on_open(self, attachment: bytes, stream: int, plan: str, seed: int,
                 response_ns: int, board: str) -> None:
        if board:
            self._observations[stream] = ObservationBoard(
                SharedBlock.attach(board), self._description.observation)
        prompt: Mapping[str, Any] = safetensors.numpy.load(attachment) if attachment else {}
        opened = Plan.from_json(plan)
        done: list[Device] = []
        try:
            for device in self._devices.values():
                if opened.stages_on(device.index):
                    device.open(stream, opened, seed, response_ns, prompt)
                    done.append(device)
        except PhysisError:
            for device in done:
                device.close(stream)
            raise

    def _on_close(self, attachment: bytes, stream: int) -> None:
        for device in self._devices.values():
            device.close(stream)
        self._observations.pop(stream, None)

    def _on_connect(self, attachment: bytes, links: list[dict[str, Any]]) -> None:
        for link in links:
            self._connect(LinkSpec(**link))

    def _connect(self, spec: LinkSpec) -> None:
        """Take the ends of a link that are here."""
        kv = spec.kind == 'kv'
        wake_sender, wake_receiver = self._waker(spec.sender), self._waker(spec.receiver)
        if spec.receiver in self._devices:
            self._devices[spec.receiver].connect_inlet(spec.sender, open_inlet(
                spec, self._description, self._codec, wake_receiver, wake_sender), kv)
        if spec.sender in self._devices:
            self._devices[spec.sender].connect_outlet(spec.receiver, open_outlet(
                spec, self._description, self._codec, wake_sender, wake_receiver), kv)

    def _on_disconnect(self, attachment: bytes, devices: list[int]) -> None:
        for device in self._devices.values():
            for other in devices:
                device.disconnect(other)

    def _on_stop(self, attachment: bytes) -> None:
        self._running = False

    def _waker(self, device: int) -> Any:
        """Tell a device, or the engine, that a link has news."""
        if device < 0:
            return self._bells[-1].ring
        attention, bell = self._board.attention, self._bells[self._setup.host_of[device]]

        def wake() -> None:
            attention[device] = 1
            bell.ring()
        return wake


def _end_with_engine() -> None:
    """End this process when the engine's does, however that happens."""
    engine = multiprocessing.parent_process()
    if engine is not None:
        engine.join()
        os._exit(1)


def _reply(number: int, error: Exception | None) -> bytes:
    """The answer to a request; number 0 is the start."""
    if error is None:
        return json.dumps({'number': number}).encode()
    text = str(error) if isinstance(error, PhysisError | OSError) else told(error)
    return json.dumps({'number': number, 'kind': type(error).__name__, 'text': text}).encode()
