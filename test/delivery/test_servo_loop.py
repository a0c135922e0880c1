"""A tick of the servo: what the writer says is done, what was done is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from chunks import MS, ramp

from physis_core.delivery.chunk import Floats
from physis_core.delivery.limits import JointLimits
from physis_core.delivery.ring import RingFormat, RingReader, RingWriter, ServoState
from physis_core.delivery.servo import ServoPlayer
from physis_core.delivery.servo_loop import ServoLoop

TICK_NS = 4 * MS


@dataclass
class Bench:
    """Both sides of a ring, and a clock that is moved by hand."""

    writer: RingWriter
    loop: ServoLoop
    published: list[Floats]
    now_ns: int = 0
    states: list[ServoState] = field(default_factory=list)

    def run_until(self, end_ns: int) -> None:
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            self.loop.tick(self.now_ns)

    def tell(self, epoch: int = 1, active: bool = True, stop: str = '') -> None:
        self.writer.tell(epoch=epoch, active=active, stop=stop, heartbeat_ns=self.now_ns)

    def state(self) -> ServoState:
        feedback = self.writer.feedback()
        assert feedback is not None
        return feedback.state


@pytest.fixture
def bench(ring_name: str) -> Iterator[Bench]:
    writer = RingWriter(ring_name, RingFormat(('a', 'b'), 8))
    reader = RingReader.open(ring_name)
    assert reader is not None
    published: list[Floats] = []
    player = ServoPlayer(JointLimits.none(2, 10.0), 0.06, 0.1, 0.004)
    bench = Bench(writer, ServoLoop(reader, player, published.append, 250.0, False), published)
    yield bench
    reader.close()
    writer.close()


def test_nothing_is_published_while_inactive(bench: Bench) -> None:
    bench.writer.write(ramp(0, 100 * MS), np.zeros(2))
    bench.tell(active=False)
    bench.run_until(400 * MS)
    assert not bench.published
    assert bench.state() is ServoState.IDLE


def test_chunks_are_played_and_their_effect_is_reported(bench: Bench) -> None:
    bench.tell()
    bench.writer.write(ramp(0, 100 * MS), np.zeros(2))
    bench.writer.write(ramp(1, 260 * MS, start=0.16), np.zeros(2))
    bench.run_until(300 * MS)
    assert [effect.chunk for effect in bench.writer.new_effects()] == [0, 1]
    feedback = bench.writer.feedback()
    assert feedback is not None
    assert feedback.played == len(bench.published) == 51
    assert feedback.position == pytest.approx(bench.published[-1])


def test_deactivating_comes_to_rest_and_falls_silent(bench: Bench) -> None:
    bench.tell()
    bench.writer.write(ramp(0, 100 * MS), np.zeros(2))
    bench.run_until(180 * MS)
    bench.tell(active=False)
    bench.run_until(200 * MS)
    assert bench.published  # decelerating
    bench.run_until(600 * MS)
    said = len(bench.published)
    assert bench.published[-1] == pytest.approx(bench.published[-2], abs=1e-3)
    bench.run_until(900 * MS)
    assert len(bench.published) == said


def test_a_stop_of_the_writer_is_latched_until_its_next_epoch(bench: Bench) -> None:
    bench.tell()
    bench.writer.write(ramp(0, 100 * MS), np.zeros(2))
    bench.run_until(180 * MS)
    bench.tell(stop='worker lost')
    bench.run_until(184 * MS)
    assert bench.state() is ServoState.STOPPED
    bench.tell(stop='')  # the reason alone does not lift it
    bench.run_until(300 * MS)
    assert bench.state() is ServoState.STOPPED
    bench.tell(epoch=2)
    bench.writer.write(ramp(0, 320 * MS, epoch=2), np.zeros(2))
    bench.run_until(340 * MS)
    assert bench.state() is ServoState.PLAYING


def test_a_stop_requested_at_the_servo_is_latched_too(bench: Bench) -> None:
    bench.tell()
    bench.writer.write(ramp(0, 100 * MS), np.zeros(2))
    bench.run_until(180 * MS)
    bench.loop.stop_request = 'asked'
    bench.run_until(184 * MS)
    bench.writer.write(ramp(1, 260 * MS), np.zeros(2))
    bench.run_until(320 * MS)
    assert bench.state() is ServoState.STOPPED
    assert bench.loop.at_rest


def test_a_dead_writer_means_play_to_the_end_then_hold(bench: Bench) -> None:
    bench.tell()
    bench.writer.write(ramp(0, 100 * MS), np.zeros(2))
    bench.run_until(256 * MS)
    assert bench.state() is ServoState.PLAYING
    bench.run_until(600 * MS)
    assert bench.state() is ServoState.HOLDING
    assert bench.loop.at_rest
