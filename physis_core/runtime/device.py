"""One device: take what has arrived, choose a batch, run it, hand it on.

A device never waits inside: :meth:`Device.advance` does what can be done now and says when it
wants to be called again.  Its host calls it when a link has news or that time has come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from physis_core.errors import OrderViolation, PhysisError, StreamError, told
from physis_core.graph import StageGraph, Task
from physis_core.planning.plan import Plan
from physis_core.runtime.boards import ControlBoard
from physis_core.runtime.dispatch import (
    Batch,
    Dispatcher,
    ReadyQueue,
    WaitUntil,
    Work,
    planned_end_ns,
)
from physis_core.runtime.executor import Executor
from physis_core.runtime.links.ends import ENGINE
from physis_core.runtime.links.protocol import Inlet, Message, Outlet
from physis_core.runtime.packets import ChunkState
from physis_core.runtime.stage_times import StageTimes
from physis_core.runtime.telemetry import StageLog

_BATCHES_PER_CALL = 4
"""Between them the host looks for the engine's requests."""

Fault = Callable[[int, int, str, str], None]
"""Report (stream, epoch, kind, text) to the engine."""


@dataclass
class _Stream:
    """What a device knows of an open stream."""

    remaining_ns: list[int]  # by stage
    response_ns: int  # planned; 0: nothing is
    receiver: list[int | None]  # by stage; None: it stays here, or ends here
    kv_receivers: list[list[int]]  # by stage; other devices that read the KV written there
    failed_epoch: int = -1


@dataclass
class _Outbox:
    """Finished work that found no place in its link: it blocks its stage until it is gone."""

    outlet: Outlet
    items: deque[tuple[ChunkState, Mapping[str, torch.Tensor]]] = field(default_factory=deque)
    news: bool = False

    def send(self, state: ChunkState, tensors: Mapping[str, torch.Tensor]) -> None:
        """Send now, or keep a copy in order: the chunk goes on, and its memory is used again."""
        if self.items or not self.outlet.try_send(state, tensors):
            self.items.append((replace(state), {
                name: tensor.clone() for name, tensor in tensors.items()}))
        else:
            self.news = True

    def flush(self) -> bool:
        """Send what was kept; whether all of it went."""
        while self.items:
            if not self.outlet.try_send(*self.items[0]):
                return False
            self.items.popleft()
            self.news = True
        return True

    def announce(self) -> None:
        """Have the receiver look, if anything was sent."""
        if self.news:
            self.news = False
            self.outlet.announce()


class Device:
    """The stages that live on one device.  Used by one thread of its host process."""

    def __init__(self, index: int, graph: StageGraph, executor: Executor, dispatcher: Dispatcher,
                 board: ControlBoard, log: StageLog, times: StageTimes, fault: Fault, *,
                 single_stage: bool) -> None:
        """``single_stage``: one stage lives here; what waits for it stays in the link's places."""
        self.index = index
        self._graph = graph
        self._places = [graph.step_block(stage) for stage in range(graph.stages)]
        self._output_stage = graph.output_stage
        self._executor = executor
        self._dispatcher = dispatcher
        self._epochs, self._yields = board.epochs.data, board.yields.data
        self._all_resets, self._resets = board.resets.data, 0
        self._log = log
        self._times = times
        self._fault = fault
        self._single_stage = single_stage
        self._queue = ReadyQueue()
        self._streams: dict[int, _Stream] = {}
        self._inlets: dict[int, Inlet] = {}
        self._kv_inlets: dict[int, Inlet] = {}
        self._outboxes: dict[int, _Outbox] = {}
        self._kv_outboxes: dict[int, _Outbox] = {}
        self._running: tuple[Batch, int, int] | None = None
        self._free_ns = 0
        self._holds_back = False  # something found no place in its link
        self._blocked = False  # a chunk did
        self._sent = False  # something went into a link and is not announced yet

    # -- set-up, called by the host ----------------------------------------------------------------

    def open(self, stream: int, plan: Plan, seed: int, response_ns: int,
             prompt: Mapping[str, np.ndarray]) -> None:
        """Prepare for a stream that plans to respond in ``response_ns``; 0: it has no plan.

        Raises:
            Refused: no room for its KV.
        """
        stages = [self._graph.step_block(stage) for stage in plan.stages_on(self.index)]
        self._executor.open(stream, seed, stages, prompt)
        outputs = self._graph.output_stage + 1
        remaining = [max(0, response_ns * (outputs - stage - 1) // outputs)
                     for stage in range(self._graph.stages)]
        graph = self._graph
        self._streams[stream] = _Stream(
            remaining, response_ns,
            [self._next_device(plan, stage) for stage in range(graph.stages)],
            [[device for device in plan.kv_devices(*graph.step_block(stage))
              if device != self.index] for stage in range(graph.stages)])

    def _next_device(self, plan: Plan, stage: int) -> int | None:
        """The device that the result of a stage goes to; None: it stays, or goes nowhere."""
        if stage + 1 == self._graph.stages:
            return ENGINE if stage == self._graph.output_stage else None
        receiver = plan.device_of(stage + 1)
        return None if receiver == self.index else receiver

    def close(self, stream: int) -> None:
        """Forget a stream and all of its work."""
        if self._streams.pop(stream, None) is None:
            return
        self._executor.close(stream)
        self._discard(self._queue.close(stream))
        for outbox in (*self._outboxes.values(), *self._kv_outboxes.values()):
            kept = [item for item in outbox.items if item[0].stream != stream]
            outbox.items.clear()
            outbox.items.extend(kept)

    def connect_inlet(self, sender: int, inlet: Inlet, kv: bool) -> None:
        """Receive from a device or from the engine."""
        (self._kv_inlets if kv else self._inlets)[sender] = inlet

    def connect_outlet(self, receiver: int, outlet: Outlet, kv: bool) -> None:
        """Send to a device or to the engine."""
        (self._kv_outboxes if kv else self._outboxes)[receiver] = _Outbox(outlet)

    def disconnect(self, other: int) -> None:
        """Forget the links to and from a device that is gone."""
        for links in (self._inlets, self._kv_inlets, self._outboxes, self._kv_outboxes):
            links.pop(other, None)

    # -- running -----------------------------------------------------------------------------------

    def advance(self) -> int | None:
        """Do what can be done; returns when to call again (steady ns), None: on news only."""
        for _ in range(_BATCHES_PER_CALL):
            if self._all_resets[0] != self._resets:
                self._follow_resets()
            if self._running is not None:
                batch, start_ns, end_ns = self._running
                if time.monotonic_ns() < end_ns:
                    return end_ns
                self._running = None
                self._finish(batch, start_ns, end_ns)
            if self._holds_back:
                self._flush()
            self._pull()
            now_ns = time.monotonic_ns()
            decision = self._choose(now_ns)
            if isinstance(decision, WaitUntil):
                return decision.ns
            self._queue.start(decision.members)
            self._start(decision, now_ns)
        return time.monotonic_ns()

    def _follow_resets(self) -> None:
        """Drop the work of epochs that have ended."""
        self._resets = self._all_resets[0]
        for stream in self._streams:
            if self._queue.epoch(stream) not in (None, self._epochs[stream]):
                self._discard(self._queue.close(stream))

    def _flush(self) -> None:
        """Send what found no place before; a device is free only when its results have gone."""
        outboxes = (*self._outboxes.values(), *self._kv_outboxes.values())
        self._holds_back = sum(not outbox.flush() for outbox in outboxes) > 0
        self._announce()
        blocked = self._holds_back and any(outbox.items for outbox in self._outboxes.values())
        if self._blocked and not blocked:
            self._free_ns = time.monotonic_ns()
        self._blocked = blocked

    def _pull(self) -> None:
        for inlet in self._kv_inlets.values():
            while (message := inlet.pull()) is not None:
                self._take_kv(inlet, message)
        for inlet in self._inlets.values():
            while not (self._single_stage and (self._queue.ready or self._blocked)):
                message = inlet.pull()
                if message is None:
                    break
                self._take(inlet, message)

    def _take(self, inlet: Inlet, message: Message) -> None:
        state = message.state
        if not self._current(state.stream, state.epoch):
            inlet.release(message.slot)
            return
        if message.tensors and self._executor.holds_input:
            state.hidden = message.tensors['hidden']
            state.latent = message.tensors['latent']
            state.condition = message.tensors['condition']
            state.release_input = lambda: inlet.release(message.slot)
        else:
            inlet.release(message.slot)
        self._arrive(state, state.sent_ns)

    def _take_kv(self, inlet: Inlet, message: Message) -> None:
        state = message.state
        if self._current(state.stream, state.epoch):
            task = Task(state.chunk, *self._places[state.stage])
            self._executor.take_kv(state.stream, task, message.tensors)
            try:
                self._queue.kv_arrived(state.stream, task, state.sent_ns)
            except OrderViolation as error:
                self._end_stream(state.stream, state.epoch, error)
        inlet.release(message.slot)

    def _arrive(self, state: ChunkState, arrived_ns: int) -> None:
        stage, known = state.stage, self._streams[state.stream]
        remaining_ns = known.remaining_ns[stage]
        work = Work(state.stream, state.epoch, Task(state.chunk, *self._places[stage]),
                    state.deadline_ns, remaining_ns, arrived_ns, state,
                    self._yields[state.stream] != 0,
                    planned_end_ns(state.release_ns, known.response_ns, remaining_ns))
        try:
            self._queue.arrive(work)
        except OrderViolation as error:
            self._discard([work])
            self._end_stream(state.stream, state.epoch, error)

    def _current(self, stream: int, epoch: int) -> bool:
        """Whether work of this epoch still counts; follows the engine into a new epoch."""
        if not self._counts(stream, epoch):
            return False
        if self._queue.epoch(stream) != epoch:
            self._discard(self._queue.close(stream))
            self._queue.open(stream, epoch, self._graph)
        return True

    def _counts(self, stream: int, epoch: int) -> bool:
        known = self._streams.get(stream)
        return (known is not None and epoch == self._epochs[stream]
                and epoch != known.failed_epoch)

    def _choose(self, now_ns: int) -> Batch | WaitUntil:
        ready = self._queue.ready
        if self._blocked:
            blocked = {receiver for receiver, outbox in self._outboxes.items() if outbox.items}
            ready = [work for work in ready if self._receiver(work) not in blocked]
        return self._dispatcher.next_batch(now_ns, ready)

    def _start(self, batch: Batch, now_ns: int) -> None:
        """Run a batch; a real one has ended when this returns, a virtual one ends later."""
        try:
            start_ns, end_ns = self._executor.run(batch.members, self._free_ns, now_ns)
        except Exception as error:  # a model is somebody else's code
            raise_if_fatal(error)
            self._start_apart(batch, now_ns, error)
            return
        self._times.note(batch.members[0].task.block, len(batch.members), end_ns - start_ns)
        if end_ns > time.monotonic_ns():
            self._running = (batch, start_ns, end_ns)
        else:
            self._finish(batch, start_ns, end_ns)

    def _start_apart(self, batch: Batch, now_ns: int, error: Exception) -> None:
        """Of a batch that cannot run, end the stream at fault and run the others."""
        if len(batch.members) == 1:
            work = batch.members[0]
            self._discard([work])
            self._end_stream(work.stream, work.epoch, _not_computed(work, error))
            return
        for work in batch.members:
            self._start(Batch((work,)), now_ns)

    def _finish(self, batch: Batch, start_ns: int, end_ns: int) -> None:
        """Hand on what has ended, log it, and see what became ready."""
        size = len(batch.members)
        streams = len({work.stream for work in batch.members})
        self._log.extend([(work.stream, work.epoch, *work.task, size, streams, work.arrived_ns,
                           start_ns, end_ns) for work in batch.members])
        for work in batch.members:
            state: ChunkState = work.payload
            if not self._counts(work.stream, work.epoch):
                _leave(state)
                continue
            try:
                self._queue.end(work)
                self._hand_on(work, state, end_ns)
            except OrderViolation as error:
                _leave(state)
                self._end_stream(work.stream, work.epoch, error)
        if self._sent:
            self._announce()
        self._free_ns = end_ns
        if self._holds_back:
            self._blocked = any(outbox.items for outbox in self._outboxes.values())

    def _hand_on(self, work: Work, state: ChunkState, end_ns: int) -> None:
        """Move a chunk on: to its next stage, here or elsewhere, and out when it is complete."""
        stage, known = state.stage, self._streams[work.stream]
        if state.kv is not None:
            keys, values = state.kv
            for device in known.kv_receivers[stage]:
                self._send(self._kv_outboxes[device], state, {'keys': keys, 'values': values})
            state.kv = None
        if stage == self._output_stage:
            state.finished_ns = end_ns
            self._send(self._outboxes[ENGINE], state, state.outputs)
            state.outputs = {}
        if stage + 1 == len(self._places):
            _leave(state)
            return
        state.stage = stage + 1
        receiver = known.receiver[stage]
        if receiver is None:
            work.move_on(Task(state.chunk, *self._places[stage + 1]),
                         known.remaining_ns[stage + 1], end_ns, self._yields[work.stream] != 0)
            self._queue.arrive(work)
        else:
            self._send(self._outboxes[receiver], state, {
                'hidden': state.hidden, 'latent': state.latent, 'condition': state.condition})
            _leave(state)

    def _send(self, outbox: _Outbox, state: ChunkState, tensors: Mapping[str, torch.Tensor]
              ) -> None:
        outbox.send(state, tensors)
        self._sent = True
        self._holds_back = self._holds_back or bool(outbox.items)

    def _announce(self) -> None:
        self._sent = False
        for outbox in (*self._outboxes.values(), *self._kv_outboxes.values()):
            outbox.announce()

    def _receiver(self, work: Work) -> int | None:
        """The device that a task's result goes to; None: it stays."""
        stage = self._graph.stage(work.task.step, work.task.block)
        return self._streams[work.stream].receiver[stage]

    # -- faults ------------------------------------------------------------------------------------

    def _end_stream(self, stream: int, epoch: int, error: StreamError) -> None:
        """Drop an epoch and tell the engine, which ends the stream unless it has reset it."""
        if self._counts(stream, epoch):
            self._streams[stream].failed_epoch = epoch
            self._discard(self._queue.close(stream))
            self._fault(stream, epoch, type(error).__name__, str(error))

    @staticmethod
    def _discard(works: list[Work]) -> None:
        for work in works:
            _leave(work.payload)


def _leave(state: ChunkState) -> None:
    """Free the place of the link that a chunk came in: it is no longer on this device."""
    if state.release_input is not None:
        state.release_input()
        state.release_input = None


def raise_if_fatal(error: Exception) -> None:
    """Raise an error after which no GPU works in this process: it ends, a fresh one replaces it."""
    if type(error).__name__ == 'AcceleratorError' or 'CUDA error' in str(error):
        raise error


def _not_computed(work: Work, error: Exception) -> StreamError:
    """The end of a stream whose model failed."""
    text = str(error) if isinstance(error, PhysisError) else f'the model failed with {told(error)}'
    return StreamError(f'stream {work.stream}: chunk {work.task.chunk} cannot be computed: {text}')
