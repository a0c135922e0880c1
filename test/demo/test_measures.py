"""Numbers of a recording, on recordings whose numbers are known."""

from __future__ import annotations

import math

import pytest

from physis_ros.demo.measures import measure
from physis_ros.demo.recording import ChunkSeen, EpisodeSeen, Recording

MS = 1_000_000
S = 1000 * MS
PERIOD = 160 * MS
START = 1_000 * S


def episode(number: int, began_ns: int, length_s: float, success: bool = True,
            slipped_s: float = 0.0) -> EpisodeSeen:
    return EpisodeSeen(number, 7 + number, began_ns, began_ns + round(length_s * S), length_s,
                       slipped_s, success)


def chunk(epoch: int, number: int, planned_ns: int, late_ms: float = -20.0,
          age_ms: float = 200.0) -> ChunkSeen:
    """A chunk that arrives `late_ms` after its planned start and takes effect when it can."""
    arrived_ns = planned_ns + round(late_ms * MS)
    effect_ns = max(arrived_ns, planned_ns)
    return ChunkSeen(
        epoch, number, planned_ns, effect_ns - round(age_ms * MS), capture_s=0.02, queue_s=0.03,
        response_s=0.04, sent_on_time=late_ms <= 0, arrived_ns=arrived_ns, effect_ns=effect_ns)


@pytest.fixture
def steady() -> Recording:
    """Two episodes of 4.9 s with 30 chunks each; sensors and servo throughout."""
    recording = Recording()
    for number in range(2):
        began_ns = START + number * 6 * S
        recording.episodes.append(episode(number, began_ns, 4.9))
        for index in range(30):
            recording.add_chunk(chunk(number + 1, index, began_ns + 100 * MS + index * PERIOD))
    for time_ns in range(START, START + 12 * S, 4 * MS):
        recording.servo.append(time_ns)
    for time_ns in range(START, START + 12 * S, 10 * MS):
        recording.add_sensor('joint_states', time_ns)
    return recording


def test_the_four_frequencies_are_rates_of_four_different_things(steady: Recording) -> None:
    measures = measure(steady)
    assert measures.chunk_hz == pytest.approx(6.25)
    assert measures.replan_hz == pytest.approx(6.25)
    assert measures.servo_hz == pytest.approx(250.0, rel=1e-3)
    assert measures.sensor_hz == {'joint_states': pytest.approx(100.0, rel=1e-3)}


def test_a_chunk_without_a_newer_observation_replans_nothing(steady: Recording) -> None:
    frozen_ns = steady.chunks[1, 0].capture_ns
    for seen in steady.chunks.values():
        seen.capture_ns = frozen_ns
    measures = measure(steady)
    assert measures.replan_hz == 0.0
    assert measures.chunk_hz == pytest.approx(6.25)


def test_age_is_measured_at_the_effect_and_handoff_is_what_remains(steady: Recording) -> None:
    age = measure(steady).age_ms
    assert (age.p50, age.p99, age.max, age.mean) == pytest.approx((200.0,) * 4)
    assert (age.capture, age.queue, age.response) == pytest.approx((20.0, 30.0, 40.0))
    assert age.capture + age.queue + age.response + age.handoff == pytest.approx(age.mean)


def test_late_refused_and_missing_chunks_are_misses(steady: Recording) -> None:
    began_ns = steady.episodes[0].began_ns
    steady.add_chunk(chunk(1, 3, began_ns + 100 * MS + 3 * PERIOD, late_ms=5.0))
    steady.chunks[1, 4].rejected = True
    steady.chunks[1, 5].arrived_ns = None
    del steady.chunks[1, 6]
    measures = measure(steady)
    assert measures.chunks == 60
    assert measures.deadline_misses == 4
    assert measures.on_time_ratio == pytest.approx(56 / 60)
    assert measures.rejected == 1


def test_chunks_due_after_the_end_of_an_episode_do_not_count(steady: Recording) -> None:
    ended_ns = steady.episodes[0].ended_ns
    late = chunk(1, 30, ended_ns + 10 * MS)
    late.arrived_ns = late.effect_ns = None
    steady.add_chunk(late)
    assert measure(steady).deadline_misses == 0


def test_success_time_and_real_time_factor(steady: Recording) -> None:
    steady.episodes.append(episode(2, START + 20 * S, 10.2, success=False, slipped_s=1.0))
    measures = measure(steady)
    assert measures.episodes == 3
    assert measures.success_rate == pytest.approx(2 / 3)
    assert measures.episode_s == pytest.approx(4.9)
    assert measures.real_time_factor == pytest.approx(1 - 1.0 / 20.0)


def test_nothing_seen_is_not_zero() -> None:
    measures = measure(Recording())
    assert measures.episodes == 0
    assert all(math.isnan(value) for value in (
        measures.success_rate, measures.chunk_hz, measures.servo_hz, measures.age_ms.p50,
        measures.on_time_ratio))
