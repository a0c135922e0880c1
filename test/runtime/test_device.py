"""One device in this process: what it takes, drops, hands on, and when it must wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from physis_core.graph import StageGraph, Task
from physis_core.models.protocol import TensorSpec
from physis_core.planning.modes import full_split
from physis_core.runtime.boards import ControlBoard
from physis_core.runtime.device import _BATCHES_PER_CALL, Device, _Outbox
from physis_core.runtime.dispatch import SlackDispatcher, Work
from physis_core.runtime.executor import Executor
from physis_core.runtime.links.ends import ENGINE
from physis_core.runtime.links.shm import Ring, ShmInlet, ShmOutlet, create_ring
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout
from physis_core.runtime.stage_times import StageTimes
from physis_core.runtime.telemetry import EdgeMeter, StageLog
from physis_core.runtime.virtual import VirtualExecutor, VirtualModel

GRAPH = StageGraph(1, 3)
CODEC = HeaderCodec(1)
TOKEN = PacketLayout({})
HOP = PacketLayout({name: TensorSpec((1,)) for name in ('hidden', 'latent', 'condition')})


class Relay:
    """Reads its input in place, in the link; the latent and the condition stay there."""

    holds_input = True

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    def open(self, stream: int, seed: int, stages: Sequence[tuple[int, int]],
             prompt: Mapping[str, np.ndarray]) -> None: ...

    def close(self, stream: int) -> None: ...

    def run(self, batch: Sequence[Work], free_ns: int, now_ns: int) -> tuple[int, int]:
        for work in batch:
            work.payload.hidden = work.payload.hidden + 1
        self.meanwhile()
        return now_ns, time.monotonic_ns()

    def take_kv(self, stream: int, task: Task, tensors: Mapping[str, torch.Tensor]) -> None: ...


class Bench:
    """The first device of a line, or with an executor the second, and its two links."""

    def __init__(self, slots: int = 1, executor: Executor | None = None) -> None:
        index = int(executor is not None)
        sender, receiver = index - 1, index + 1
        assert ENGINE == -1
        self.board = ControlBoard.create(1, 3, 2)
        self.faults: list[tuple[int, int, str, str]] = []
        self.wakes = 0
        self.log = StageLog.create()
        plan = full_split(GRAPH, 3)
        self.device = Device(
            index, GRAPH, executor or VirtualExecutor(VirtualModel(GRAPH, 0.0, 0.0), 0),
            SlackDispatcher(plan.batch, lambda *_: 0), self.board, self.log, StageTimes(),
            lambda *fault: self.faults.append(fault), single_stage=False)
        self.entrance, inlet = self._link(HOP, 1) if executor else self._link(TOKEN, 8)
        outlet, self.exit = self._link(HOP, slots)
        self.device.connect_inlet(sender, inlet, False)
        self.device.connect_outlet(receiver, outlet, False)
        for stream in (0, 1):
            self.board.epochs[stream] = 1
            self.device.open(stream, plan, 0, 0, {})

    def _link(self, layout: PacketLayout, slots: int) -> tuple[ShmOutlet, ShmInlet]:
        def wake() -> None:
            self.wakes += 1
        block = create_ring(layout, CODEC, slots)
        meter = EdgeMeter.create()
        return (ShmOutlet(Ring(block, layout, CODEC, slots), meter, wake),
                ShmInlet(Ring(block, layout, CODEC, slots), meter, wake))

    def enter(self, chunk: int, stream: int = 0, epoch: int = 1) -> None:
        assert self.entrance.try_send(
            ChunkState(stream, epoch, chunk, observation_ids=[-1]), {})
        self.entrance.announce()

    def hand_over(self, chunk: int, epoch: int = 1) -> None:
        """From the device before, which has one place for it."""
        tensors = {name: torch.full((1,), 10.0 * chunk + count)
                   for count, name in enumerate(HOP.tensors)}
        assert self.entrance.try_send(
            ChunkState(0, epoch, chunk, stage=1, observation_ids=[-1]), tensors)
        self.entrance.announce()

    def advance(self) -> None:
        """As often as there is something to do."""
        while self.device.advance() is not None:
            pass

    def left(self) -> list[tuple[int, int, int]]:
        """(stream, epoch, chunk) of what went on to device 1."""
        taken = []
        while (message := self.exit.pull()) is not None:
            taken.append((message.state.stream, message.state.epoch, message.state.chunk))
            assert message.state.stage == 1
            self.exit.release(message.slot)
        return taken


def test_chunks_pass_in_order_and_are_logged() -> None:
    bench = Bench(slots=4)
    for chunk in range(3):
        bench.enter(chunk)
    bench.advance()
    assert bench.left() == [(0, 1, 0), (0, 1, 1), (0, 1, 2)]
    records = bench.log.latest()
    assert records['chunk'].tolist() == [0, 1, 2]
    assert (records['end_ns'] >= records['start_ns']).all()


def test_a_full_link_blocks_the_stage_until_a_place_is_free() -> None:
    bench = Bench(slots=1)
    for chunk in range(3):
        bench.enter(chunk)
    bench.advance()
    assert bench.log.total == 2  # one in the link, one done and waiting for a place
    for chunk in range(3):
        assert bench.left() == [(0, 1, chunk)]
        bench.advance()


def test_nothing_of_an_old_epoch_is_started_or_handed_on() -> None:
    bench = Bench(slots=1)
    for chunk in range(3):
        bench.enter(chunk)
    bench.device.advance()
    started = bench.log.total
    bench.board.epochs[0] = 2
    bench.board.resets[0] += 1
    bench.advance()
    assert bench.log.total == started  # dropped before the next task
    bench.enter(0, epoch=2)
    bench.advance()
    assert [one for one in bench.left() if one[1] == 2] in ([], [(0, 2, 0)])
    bench.advance()
    assert bench.log.latest()['epoch'].tolist()[started:] == [2]
    assert bench.faults == []


def test_what_is_ready_when_its_epoch_ends_is_never_run() -> None:
    bench = Bench(slots=8)  # there is room for all: nothing but the reset holds work back
    for chunk in range(_BATCHES_PER_CALL + 3):
        bench.enter(chunk)
    bench.device.advance()
    assert bench.log.latest()['chunk'].tolist() == list(range(_BATCHES_PER_CALL))
    bench.board.epochs[0] = 2
    bench.board.resets[0] += 1
    bench.advance()
    assert bench.log.total == _BATCHES_PER_CALL
    bench.enter(0, epoch=2)
    bench.advance()
    assert bench.log.latest()['epoch'].tolist() == [1] * _BATCHES_PER_CALL + [2]
    assert bench.left()[-1] == (0, 2, 0)


def test_an_order_violation_is_reported_once_and_ends_one_epoch_of_one_stream() -> None:
    bench = Bench(slots=8)
    bench.enter(0)
    bench.enter(0)
    bench.enter(1)
    bench.enter(0, stream=1)
    bench.advance()
    assert [(stream, epoch, kind) for stream, epoch, kind, _ in bench.faults] == [
        (0, 1, 'OrderViolation')]
    assert (1, 1, 0) in bench.left()
    bench.board.epochs[0] = 2  # a reset at that moment: the stream goes on
    bench.board.resets[0] += 1
    bench.enter(0, epoch=2)
    bench.advance()
    assert bench.left() == [(0, 2, 0)]


def test_work_for_a_stream_that_is_closed_is_dropped() -> None:
    bench = Bench()
    bench.device.close(0)
    bench.enter(0)
    bench.advance()
    assert bench.left() == []
    assert bench.log.total == 0


def test_a_device_that_is_gone_is_forgotten() -> None:
    bench = Bench()
    bench.enter(0)
    bench.device.disconnect(ENGINE)
    bench.advance()
    assert bench.log.total == 0


def test_a_place_is_free_again_as_soon_as_its_chunk_has_left_or_found_no_room_ahead() -> None:
    bench = Bench(slots=1, executor=Relay())
    for chunk in range(3):  # the second has to wait, in memory of its own
        bench.hand_over(chunk)
        bench.advance()
    for chunk in range(2):
        message = bench.exit.pull()
        assert message is not None
        assert [float(message.tensors[name]) for name in HOP.tensors] == [
            10 * chunk + 1, 10 * chunk + 1, 10 * chunk + 2]
        bench.exit.release(message.slot)
        bench.advance()


def test_a_place_is_free_again_when_the_epoch_of_its_chunk_ends_meanwhile() -> None:
    relay = Relay()
    bench = Bench(slots=1, executor=relay)

    def reset() -> None:
        bench.board.epochs[0] = 2

    relay.meanwhile = reset
    bench.hand_over(0)
    bench.advance()
    bench.hand_over(0, epoch=2)


def test_what_waits_for_room_goes_out_as_it_was_while_its_chunk_went_on() -> None:
    memory = create_ring(HOP, CODEC, 1)
    ring = Ring(memory, HOP, CODEC, 1)
    outbox = _Outbox(ShmOutlet(ring, EdgeMeter.create(), lambda: None))
    exit_ = ShmInlet(ring, EdgeMeter.create(), lambda: None)
    state = ChunkState(0, 1, 0, observation_ids=[0])
    value = torch.zeros(1)
    for stage in range(3):  # as its KV goes out after each stage
        state.stage = stage
        value.fill_(stage)
        outbox.send(state, dict.fromkeys(HOP.tensors, value))
    for stage in range(3):
        outbox.announce()
        message = exit_.pull()
        assert message is not None
        assert message.state.stage == stage == float(message.tensors['hidden'])
        exit_.release(message.slot)
        outbox.flush()
    memory.close()


def test_the_log_keeps_the_latest_and_counts_all() -> None:
    log = StageLog.create()
    for index in range(9000):
        log.append(0, 0, index, 0, 0, 1, 1, 0, 0, 0)
    assert log.total == 9000
    assert log.latest(3)['chunk'].tolist() == [8997, 8998, 8999]
    assert np.array_equal(np.diff(log.latest()['chunk']), np.ones(len(log.latest()) - 1))
