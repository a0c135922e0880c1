"""One device in this process: what it takes, drops, hands on, and when it must wait."""

from __future__ import annotations

import numpy as np

from physis_core.graph import StageGraph
from physis_core.models.protocol import TensorSpec
from physis_core.planning.modes import full_split
from physis_core.runtime.boards import ControlBoard
from physis_core.runtime.device import Device
from physis_core.runtime.dispatch import SlackDispatcher
from physis_core.runtime.links.ends import ENGINE
from physis_core.runtime.links.shm import Ring, ShmInlet, ShmOutlet, create_ring
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout
from physis_core.runtime.stage_times import StageTimes
from physis_core.runtime.telemetry import EdgeMeter, StageLog
from physis_core.runtime.virtual import VirtualExecutor, VirtualModel

GRAPH = StageGraph(1, 2)
CODEC = HeaderCodec(1)
HOP = PacketLayout({name: TensorSpec((1,)) for name in ('hidden', 'latent', 'condition')})


class Bench:
    """Device 0 of two: the engine before it, device 1 after it."""

    def __init__(self, slots: int = 1) -> None:
        self.model = VirtualModel(GRAPH, 0.0, 0.0)
        self.board = ControlBoard.create(1, 2, 2)
        self.faults: list[tuple[int, int, str, str]] = []
        self.wakes = 0
        self.log = StageLog.create()
        plan = full_split(GRAPH, 2)
        self.device = Device(
            0, GRAPH, VirtualExecutor(self.model, 0), SlackDispatcher(plan.batch, lambda *_: 0),
            self.board, self.log, StageTimes(), lambda *fault: self.faults.append(fault),
            single_stage=False)
        self.entrance, inlet = self._link(PacketLayout({}), 8)
        outlet, self.exit = self._link(HOP, slots)
        self.device.connect_inlet(ENGINE, inlet, False)
        self.device.connect_outlet(1, outlet, False)
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


def test_the_log_keeps_the_latest_and_counts_all() -> None:
    log = StageLog.create()
    for index in range(9000):
        log.append(0, 0, index, 0, 0, 1, 1, 0, 0, 0)
    assert log.total == 9000
    assert log.latest(3)['chunk'].tolist() == [8997, 8998, 8999]
    assert np.array_equal(np.diff(log.latest()['chunk']), np.ones(len(log.latest()) - 1))
