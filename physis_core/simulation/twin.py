"""The engine's twin: executes plans with the engine's own dispatch code and a virtual clock.

Everything that happens at one instant happens before any device chooses what to run next, so the
result does not depend on an order of events that no clock could tell apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from physis_core.errors import InputError
from physis_core.graph import Task
from physis_core.planning.plan import BatchRule, Plan, united_order
from physis_core.runtime.dispatch import (
    Batch,
    Dispatcher,
    Predict,
    ReadyQueue,
    SlackDispatcher,
    Work,
    planned_end_ns,
)
from physis_core.simulation.jitter import STEADY, FactorTable, Jitter

MakeDispatcher = Callable[[BatchRule, Predict, Sequence[tuple[int, int]]], Dispatcher]

_EPOCH = 0


@dataclass(frozen=True)
class Stream:
    """One stream of a simulation.

    Attributes:
        plan: where its stages live, on the devices of the pool.
        stage_ns: mean time of a stage [ns] from (block, batch).
        predict_ns: what the dispatcher expects instead; by default the mean.
        hop_ns: time of a hidden state [ns] from (sender, receiver).
        model: streams of one model may share batches.
        open_ns: when its first chunk enters.
        close_ns: when it is closed, whatever is under way; None: never.
        chunks: how many it sends; None: until it closes.
        deadline_ns: how long after its planned entrance a chunk is due; None: oldest first.
        yields: its tasks give way to those of other streams.
    """

    plan: Plan
    stage_ns: Predict
    predict_ns: Predict | None = None
    hop_ns: Callable[[int, int], int] | None = None
    model: str = ''
    open_ns: int = 0
    close_ns: int | None = None
    chunks: int | None = None
    deadline_ns: int | None = None
    yields: bool = False


@dataclass(frozen=True)
class Stall:
    """A device starts nothing from ``start_ns`` for ``length_ns``; what runs is finished."""

    device: int
    start_ns: int
    length_ns: int


@dataclass(slots=True)
class ChunkRecord:
    """What became of a chunk [ns]: planned entrance, entrance, output; None: not (yet) put out."""

    stream: int
    chunk: int
    planned_ns: int
    entered_ns: int
    output_ns: int | None = None

    @property
    def response_ns(self) -> int | None:
        """From its planned entrance to its output: waiting for a place counts."""
        return None if self.output_ns is None else self.output_ns - self.planned_ns


@dataclass(frozen=True)
class BatchRecord:
    """A batch that ran: where, when [ns], and the (stream, chunk, step, block) of its members."""

    device: int
    start_ns: int
    end_ns: int
    members: tuple[tuple[int, int, int, int], ...]


@dataclass
class Outcome:
    """What a simulation saw.

    Attributes:
        chunks: per stream, its chunks.
        batches: every batch, where they were asked for.
        busy_ns: per device, time spent in batches.
        batch_count: how many batches there were.
        task_count: how many tasks were in them.
        end_ns: time of the last event.
    """

    chunks: list[list[ChunkRecord]]
    batches: list[BatchRecord] = field(default_factory=list)
    busy_ns: list[int] = field(default_factory=list)
    batch_count: int = 0
    task_count: int = 0
    end_ns: int = 0

    def outputs_ns(self, stream: int) -> list[int]:
        """Times of a stream's outputs [ns]."""
        return [record.output_ns for record in self.chunks[stream]
                if record.output_ns is not None]

    def mean_period_ns(self, stream: int, warmup: int = 0) -> float:
        """Mean interval between its outputs after ``warmup`` of them [ns]."""
        outputs = self.outputs_ns(stream)[warmup:]
        if len(outputs) < 2:
            raise InputError(f'{len(outputs)} outputs after a warm-up of {warmup}; an interval '
                             'needs two: simulate more chunks')
        return (outputs[-1] - outputs[0]) / (len(outputs) - 1)


@dataclass
class _Source:
    """Where a stream stands."""

    stream: Stream
    base: int  # added to its block numbers, so that models do not share batches
    next_chunk: int = 0
    planned_ns: int = 0
    in_flight: int = 0
    is_open: bool = False
    timer_set: bool = False
    remaining_ns: tuple[int, ...] = ()
    response_ns: int = 0


@dataclass
class _Device:
    """What a device is doing."""

    queue: ReadyQueue
    dispatcher: Dispatcher
    running: bool = False
    ran: int = 0
    stalled_until_ns: int = 0
    held: Work | None = None  # finished, but the next device has no place for it


class Twin:
    """A pool of devices and the streams on it.

    Args:
        streams: their plans name devices of one pool.
        jitter: of stage times.
        stalls: of devices.
        slots: places between two devices, where a finished task that finds none blocks its device
            (only for one stream on a line of devices); None: as many as it takes.
        make_dispatcher: the policy; by default the engine's.
        keep_batches: whether the outcome lists every batch.
    """

    def __init__(self, streams: Sequence[Stream], jitter: Jitter = STEADY,
                 stalls: Sequence[Stall] = (), slots: int | None = None,
                 make_dispatcher: MakeDispatcher = SlackDispatcher,
                 keep_batches: bool = False) -> None:
        if not streams:
            raise InputError('0 streams to simulate; give at least 1')
        count = max(stream.plan.devices for stream in streams)
        self._slots = slots
        if slots is not None:
            _require_line(streams, slots)
        self._bases = _block_bases(streams)
        self._sources = [_Source(stream, self._bases[stream.model]) for stream in streams]
        for source in self._sources:
            source.response_ns = _response_ns(source.stream.plan)
            source.remaining_ns = _remaining_ns(source.stream)
        self._devices = [self._device(index, make_dispatcher) for index in range(count)]
        self._factors = FactorTable(jitter, count)
        self._outcome = Outcome([[] for _ in streams], busy_ns=[0] * count)
        self._keep_batches = keep_batches
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._counted = 0
        self._now_ns = 0
        self._touched: set[int] = set()
        for number, source in enumerate(self._sources):
            self._at(source.stream.open_ns, partial(self._open, number))
            if source.stream.close_ns is not None:
                self._at(source.stream.close_ns, partial(self._close, number))
        for stall in stalls:
            self._at(stall.start_ns, partial(self._stall, stall))

    def run(self, until_ns: int | None = None) -> Outcome:
        """Execute until nothing is left to do, or until a time."""
        while self._events and (until_ns is None or self._events[0][0] <= until_ns):
            now_ns = self._events[0][0]
            self._now_ns = now_ns
            while self._events and self._events[0][0] == now_ns:
                heapq.heappop(self._events)[2](now_ns)
            while self._touched:
                self._dispatch(self._touched.pop(), now_ns)
        self._outcome.end_ns = self._now_ns
        return self._outcome

    # -- set-up --------------------------------------------------------------------------------

    def _device(self, index: int, make_dispatcher: MakeDispatcher) -> _Device:
        here = {number: source for number, source in enumerate(self._sources)
                if source.stream.plan.stages_on(index)}
        rules = {source.stream.plan.batch for source in here.values()}
        if len(rules) > 1:
            raise InputError(f'device {index} has {len(rules)} batch rules; the plans of streams '
                             'that share a device have the same one')
        order: list[tuple[int, int]] = []
        for base in dict.fromkeys(source.base for source in here.values()):
            plans = {number: source.stream.plan for number, source in here.items()
                     if source.base == base}
            graph = next(iter(plans.values())).graph
            order += [(step, block + base)
                      for step, block in map(graph.step_block, united_order(plans, index))]
        rule = rules.pop() if rules else BatchRule()
        return _Device(ReadyQueue(), make_dispatcher(rule, self._predict_ns, order))

    def _predict_ns(self, block: int, batch: int) -> int:
        source = self._source_of(block)
        predict = source.stream.predict_ns or source.stream.stage_ns
        return predict(block - source.base, batch)

    def _source_of(self, block: int) -> _Source:
        base = max(base for base in self._bases.values() if base <= block)
        return next(source for source in self._sources if source.base == base)

    def _at(self, time_ns: int, action: Callable[[int], None]) -> None:
        self._counted += 1
        heapq.heappush(self._events, (time_ns, self._counted, action))

    # -- streams -------------------------------------------------------------------------------

    def _open(self, number: int, now_ns: int) -> None:
        source = self._sources[number]
        source.is_open = True
        source.planned_ns = now_ns
        for device in self._devices:
            device.queue.open(number, _EPOCH, source.stream.plan.graph)
        self._enter(number, now_ns)

    def _close(self, number: int, now_ns: int) -> None:
        self._sources[number].is_open = False
        for device in self._devices:
            device.queue.close(number)

    def _enter(self, number: int, now_ns: int) -> None:
        """Let in the chunks whose time has come and for which there is a place."""
        source = self._sources[number]
        plan = source.stream.plan
        while (source.is_open and source.in_flight < plan.max_in_flight
               and (source.stream.chunks is None or source.next_chunk < source.stream.chunks)):
            if source.planned_ns > now_ns:
                if not source.timer_set:
                    source.timer_set = True
                    self._at(source.planned_ns, partial(self._timer, number))
                return
            if self._slots is not None and not self._has_place(None, plan.device_of(0)):
                return
            chunk = source.next_chunk
            planned_ns = source.planned_ns if plan.period_us else now_ns
            self._outcome.chunks[number].append(ChunkRecord(number, chunk, planned_ns, now_ns))
            source.next_chunk += 1
            source.in_flight += 1
            source.planned_ns = planned_ns + 1000 * plan.period_us
            self._arrive(number, Task(chunk, 0, 0), now_ns)

    def _timer(self, number: int, now_ns: int) -> None:
        self._sources[number].timer_set = False
        self._enter(number, now_ns)

    # -- tasks ---------------------------------------------------------------------------------

    def _arrive(self, number: int, task: Task, now_ns: int) -> None:
        source = self._sources[number]
        if not source.is_open:
            return
        plan = source.stream.plan
        stage = plan.graph.stage(task.step, task.block)
        planned_ns = self._outcome.chunks[number][task.chunk].planned_ns
        index = plan.device_of(stage)
        self._devices[index].queue.arrive(Work(
            number, _EPOCH, Task(task.chunk, task.step, task.block + source.base),
            planned_ns + (source.stream.deadline_ns or 0), source.remaining_ns[stage], now_ns,
            yields=source.stream.yields,
            planned_ns=planned_end_ns(planned_ns, source.response_ns,
                                      source.remaining_ns[stage])))
        self._touched.add(index)

    def _dispatch(self, index: int, now_ns: int) -> None:
        device = self._devices[index]
        if device.running or device.held is not None or not device.queue.ready:
            return
        if now_ns < device.stalled_until_ns:
            return
        choice = device.dispatcher.next_batch(now_ns, device.queue.ready)
        if not isinstance(choice, Batch):
            if choice.ns is not None:
                self._at(choice.ns, partial(self._wake, index))
            return
        members = choice.members
        device.queue.start(members)
        device.running = True
        head = self._sources[members[0].stream]
        mean_ns = head.stream.stage_ns(members[0].task.block - head.base, len(members))
        length_ns = round(mean_ns * self._factors.factor(index, device.ran))
        device.ran += 1
        self._outcome.busy_ns[index] += length_ns
        self._outcome.batch_count += 1
        self._outcome.task_count += len(members)
        if self._keep_batches:
            self._outcome.batches.append(BatchRecord(index, now_ns, now_ns + length_ns, tuple(
                (work.stream, work.task.chunk, work.task.step,
                 work.task.block - self._sources[work.stream].base) for work in members)))
        self._at(now_ns + length_ns, partial(self._end, index, members))
        if self._slots is not None:
            self._place_is_free(index, now_ns)

    def _wake(self, index: int, now_ns: int) -> None:
        self._touched.add(index)

    def _stall(self, stall: Stall, now_ns: int) -> None:
        until_ns = now_ns + stall.length_ns
        device = self._devices[stall.device]
        device.stalled_until_ns = max(device.stalled_until_ns, until_ns)
        self._at(until_ns, partial(self._wake, stall.device))

    def _end(self, index: int, members: Sequence[Work], now_ns: int) -> None:
        device = self._devices[index]
        device.running = False
        self._touched.add(index)
        for work in members:
            source = self._sources[work.stream]
            if not source.is_open:
                continue
            device.queue.end(work)
            task = Task(work.task.chunk, work.task.step, work.task.block - source.base)
            self._send_kv(index, work.stream, task, now_ns)
            self._hand_over(index, work, task, now_ns)
        if self._slots is not None and device.held is None:
            self._place_is_free(index, now_ns)

    def _send_kv(self, index: int, number: int, task: Task, now_ns: int) -> None:
        """KV that is read elsewhere travels there."""
        source = self._sources[number]
        plan = source.stream.plan
        if all(reader == task.step for reader in plan.graph.kv_reader_steps(task.step)):
            return
        for receiver in plan.kv_devices(task.step, task.block):
            if receiver != index:
                self._at(now_ns + self._hop_ns(source, index, receiver),
                         partial(self._kv_arrive, receiver, number, task))

    def _kv_arrive(self, receiver: int, number: int, task: Task, now_ns: int) -> None:
        source = self._sources[number]
        if source.is_open:
            self._devices[receiver].queue.kv_arrived(
                number, Task(task.chunk, task.step, task.block + source.base))
            self._touched.add(receiver)

    def _hand_over(self, index: int, work: Work, task: Task, now_ns: int) -> None:
        source = self._sources[work.stream]
        plan = source.stream.plan
        stage = plan.graph.stage(task.step, task.block)
        if stage == plan.graph.output_stage:
            self._outcome.chunks[work.stream][task.chunk].output_ns = now_ns
        following = plan.graph.next_task(task)
        if following is None:
            source.in_flight -= 1
            self._enter(work.stream, now_ns)
            return
        receiver = plan.device_of(stage + 1)
        if self._slots is not None and receiver != index and not self._has_place(index, receiver):
            self._devices[index].held = work
            return
        hop_ns = self._hop_ns(source, index, receiver)
        if hop_ns:
            self._at(now_ns + hop_ns, partial(self._arrive, work.stream, following))
        else:
            self._arrive(work.stream, following, now_ns)

    def _hop_ns(self, source: _Source, sender: int, receiver: int) -> int:
        return 0 if source.stream.hop_ns is None else source.stream.hop_ns(sender, receiver)

    # -- places between devices ----------------------------------------------------------------

    def _has_place(self, sender: int | None, receiver: int) -> bool:
        """Whether a finished task may move on: into a place, or straight into service."""
        device = self._devices[receiver]
        waiting = len(device.queue.ready) + device.queue.waiting
        idle = not device.running and device.held is None
        return waiting < (self._slots or 0) + (1 if idle else 0)

    def _place_is_free(self, index: int, now_ns: int) -> None:
        """A device has taken a task, or has become idle: whoever was blocked before it moves on."""
        if not index:
            self._enter(0, now_ns)
            return
        sender = self._devices[index - 1]
        if sender.held is not None and self._has_place(index - 1, index):
            work, sender.held = sender.held, None
            self._touched.add(index - 1)
            following = self._sources[0].stream.plan.graph.next_task(work.task)
            if following is not None:
                self._arrive(0, following, now_ns)
            self._place_is_free(index - 1, now_ns)


def _require_line(streams: Sequence[Stream], slots: int) -> None:
    if slots < 0:
        raise InputError(f'{slots} slots between stages; the least is 0')
    graph = streams[0].plan.graph
    device_of = [streams[0].plan.device_of(stage) for stage in range(graph.stages)]
    if len(streams) > 1 or device_of != list(range(graph.stages)):
        raise InputError(
            f'{len(streams)} stream(s) on devices {device_of[:8]}...: blocking slots are simulated '
            'for one stream with one stage on each device; leave out the slots')


def _block_bases(streams: Sequence[Stream]) -> dict[str, int]:
    """First block number of each model in this simulation."""
    bases: dict[str, int] = {}
    used = 0
    for stream in streams:
        if stream.model not in bases:
            bases[stream.model] = used
            used += stream.plan.graph.blocks
    return bases


def _response_ns(plan: Plan) -> int:
    """What the plan predicts [ns]; 0: nothing."""
    return 1000 * plan.prediction.response_us if plan.prediction is not None else 0


def _remaining_ns(stream: Stream) -> tuple[int, ...]:
    """Predicted time from the end of each stage to the output [ns].

    By the plan's response, in equal parts; where it predicts none, alone in every batch.  None of
    a stream that is let in as fast as it goes: it is on no timetable.
    """
    graph = stream.plan.graph
    if not stream.plan.period_us:
        return (0,) * graph.stages
    response_ns = _response_ns(stream.plan)
    if response_ns:
        outputs = graph.output_stage + 1
        return tuple(max(0, response_ns * (outputs - stage - 1) // outputs)
                     for stage in range(graph.stages))
    predict = stream.predict_ns or stream.stage_ns
    remaining = [0] * graph.stages
    for stage in range(graph.output_stage - 1, -1, -1):
        remaining[stage] = remaining[stage + 1] + predict((stage + 1) % graph.blocks, 1)
    return tuple(remaining)


def profile_ns(times_us: Callable[[int, int], int]) -> Predict:
    """A stage time in nanoseconds from one in microseconds."""
    return lambda block, batch: 1000 * times_us(block, batch)

