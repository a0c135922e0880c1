"""What is measured of delivered chunks: when each took effect, and what a pause has cost.

An action takes effect when the servo says so, or else at the planned start of its trajectory.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from fake_engine import JOINTS, POINTS, FakeStream
from graph import NAMES
from node_bench import Bench

from physis_core.delivery.buffer import OutputBuffer
from physis_core.delivery.chunk import PlannedChunk
from physis_core.delivery.handover import Replace
from physis_core.delivery.ring import (
    Effect,
    RingFormat,
    RingReader,
    RingWriter,
    ServoFeedback,
    ServoState,
)
from physis_core.observability.stream_account import StreamAccount
from physis_core.runtime.engine import StreamOptions
from physis_ros.chunk_delivery import ChunkDelivery
from physis_ros.msg import StreamReport

MS = 1_000_000
PERIOD_NS = 160 * MS


class Scene:
    """A delivery without its thread: the test delivers, sends, and keeps the time."""

    def __init__(self, name: str, ring: RingWriter) -> None:
        self.name = name
        self.stream = FakeStream(StreamOptions(period_ns=PERIOD_NS), epoch=1)
        self.chunks: list[PlannedChunk] = []
        policy = SimpleNamespace(joints=NAMES, control_period_ns=20 * MS)
        self.delivery = ChunkDelivery(
            cast(Any, self.stream), cast(Any, policy),
            OutputBuffer(Replace(), PERIOD_NS, 3600 * 1000 * MS), ring,
            StreamAccount(60.0, 0), 2 * PERIOD_NS,
            lambda: np.zeros(JOINTS), self.chunks.append, lambda plan: None, lambda why: None)

    def deliver(self, due_ns: int) -> PlannedChunk:
        self.delivery._deliver(self.stream.finish(due_ns=due_ns))
        return self.chunks[-1]

    def ages_ms(self, now_ns: int) -> tuple[float, float]:
        """Median and largest of what is known at a moment; NaN: nothing is."""
        self.delivery.look_at_servo(now_ns)
        age = self.delivery.numbers(now_ns)[0].age_s
        return age.p50 * 1e3, age.max * 1e3


@pytest.fixture
def scene() -> Iterator[Scene]:
    name = f'effects-{os.getpid()}-{time.monotonic_ns()}'
    with closing(RingWriter(name, RingFormat(NAMES, POINTS))) as ring:
        yield Scene(name, ring)


@contextmanager
def servo(scene: Scene) -> Iterator[RingReader]:
    """The side of the ring that plays."""
    reader = RingReader.open(scene.name)
    assert reader is not None
    with closing(reader):
        yield reader


def feedback(tick_ns: int, *, effects: int = 0, underruns: int = 0) -> ServoFeedback:
    return ServoFeedback(
        effects=effects, tick_ns=tick_ns, state=ServoState.PLAYING, epoch=1, real_time=False,
        ticks=1, played=1, missed=0, underruns=underruns, limited=0, rate_hz=250.0,
        position=np.zeros(JOINTS), velocity=np.zeros(JOINTS))


def test_a_trajectory_takes_effect_at_its_planned_start(scene: Scene) -> None:
    due_ns = time.monotonic_ns() + 1000 * MS
    chunk = scene.deliver(due_ns)
    scene.delivery.sent(chunk, due_ns - 20 * MS)
    assert math.isnan(scene.ages_ms(due_ns - 1)[0])
    assert scene.ages_ms(due_ns)[1] == pytest.approx((due_ns - chunk.capture_ns) / MS)
    parts = scene.delivery.numbers(due_ns)[0].part_s
    assert parts['handoff'].max * 1e3 == pytest.approx((due_ns - chunk.finished_ns) / MS)


def test_one_that_is_sent_late_takes_effect_then(scene: Scene) -> None:
    due_ns = time.monotonic_ns() + 1000 * MS
    chunk = scene.deliver(due_ns)
    sent_ns = due_ns + 30 * MS
    scene.delivery.sent(chunk, sent_ns)
    assert math.isnan(scene.ages_ms(sent_ns - 1)[0])
    assert scene.ages_ms(sent_ns)[1] == pytest.approx((sent_ns - chunk.capture_ns) / MS)


def test_one_that_was_never_sent_or_was_replaced_before_its_start_has_no_effect(scene: Scene
                                                                                ) -> None:
    due_ns = time.monotonic_ns() + 1000 * MS
    replaced, newer, _ = (scene.deliver(due_ns + count * 10 * MS) for count in range(3))
    scene.delivery.sent(replaced, due_ns - 10 * MS)
    scene.delivery.sent(newer, due_ns - 5 * MS)
    p50, most = scene.ages_ms(due_ns + 2000 * MS)
    assert p50 == most == pytest.approx((newer.due_ns - newer.capture_ns) / MS)


@pytest.mark.parametrize('how', ['stop', 'reset'])
def test_what_was_given_up_has_no_effect(scene: Scene, how: str) -> None:
    due_ns = time.monotonic_ns() + 600 * 1000 * MS
    scene.delivery.sent(scene.deliver(due_ns), due_ns - 20 * MS)
    if how == 'stop':
        scene.delivery.stop('stop requested')
    else:
        scene.delivery.reset()
    assert math.isnan(scene.ages_ms(due_ns + MS)[0])


def test_where_a_servo_plays_only_its_word_counts_and_only_once(scene: Scene) -> None:
    due_ns = time.monotonic_ns() + 1000 * MS
    played, planned = scene.deliver(due_ns), scene.deliver(due_ns + PERIOD_NS)
    for chunk in (played, planned):
        scene.delivery.sent(chunk, chunk.due_ns - 20 * MS)
    with servo(scene) as reader:
        effect_ns = due_ns + 3 * MS
        reader.effect(0, Effect(1, played.chunk, effect_ns))
        reader.report(feedback(effect_ns, effects=1))
        p50, most = scene.ages_ms(planned.due_ns + MS)
        assert p50 == most == pytest.approx((effect_ns - played.capture_ns) / MS)
        # It is gone: the next trajectory counts from its planned start.
        later = scene.deliver(due_ns + 10 * PERIOD_NS)
        scene.delivery.sent(later, later.due_ns - 20 * MS)
        _, most = scene.ages_ms(later.due_ns)
        assert most == pytest.approx((later.due_ns - later.capture_ns) / MS)


def underruns(scene: Scene, reader: RingReader, underruns: int, now_ns: int) -> int:
    """What is made of the servo's count at a moment."""
    reader.report(feedback(now_ns, underruns=underruns))
    seen = scene.delivery.look_at_servo(now_ns)
    assert seen is not None
    return scene.delivery.underruns(seen)


def test_a_wanted_pause_is_no_underrun(scene: Scene) -> None:
    with servo(scene) as reader:
        now_ns = time.monotonic_ns()
        assert underruns(scene, reader, 1, now_ns) == 1
        scene.delivery.pause(True, wanted=True)
        assert underruns(scene, reader, 2, now_ns) == 1  # the plan came to its end
        scene.delivery.pause(False)
        assert underruns(scene, reader, 3, now_ns) == 1  # nothing was made yet
        due_ns = scene.deliver(time.monotonic_ns() + 1000 * MS).due_ns
        assert underruns(scene, reader, 4, due_ns - MS) == 1  # its time has not come
        assert underruns(scene, reader, 4, due_ns + MS) == 1
        assert underruns(scene, reader, 5, due_ns + 600 * MS) == 2


def test_a_pause_for_want_of_inputs_is_one(scene: Scene) -> None:
    with servo(scene) as reader:
        now_ns = time.monotonic_ns()
        assert underruns(scene, reader, 0, now_ns) == 0
        scene.delivery.pause(True)
        assert underruns(scene, reader, 1, now_ns) == 1


def test_the_rate_begins_anew_after_a_wanted_pause_and_only_then(scene: Scene) -> None:
    for wanted in (False, True):
        for _ in range(2):
            scene.deliver(time.monotonic_ns() + 1000 * MS)
        scene.delivery.pause(True, wanted=wanted)
        scene.delivery.pause(False)
        now_ns = time.monotonic_ns()
        assert math.isnan(scene.delivery.numbers(now_ns)[0].chunk_hz) is wanted
    assert scene.delivery.numbers(now_ns + 60_000 * MS)[0].chunk_hz == 0.0


def test_a_node_without_a_servo_knows_the_age_of_its_actions(bench: Bench) -> None:
    (reports,) = bench.listen((StreamReport, '/wam_node/stream_report'))

    def known() -> bool:
        bench.stream.finish(due_in_ms=40.0)
        bench.graph.spin_for(0.05)
        return bool(reports) and not math.isnan(reports[-1].age_p99_s)

    bench.graph.wait_for(known, 'an age')
    report = reports[-1]
    # Captured 50 ms before it was finished, planned 40 ms after it.
    assert report.age_max_s >= report.age_p50_s >= 0.0899
    assert report.age_capture_s == pytest.approx(0.005)
    assert report.age_handoff_s >= 0.0399
    status = bench.graph.says('wam_node: action age', 'planned start of the trajectory')
    assert 'what the controller did then is not seen' in status.message
