"""The timeline addresses control points by absolute time."""

from __future__ import annotations

import numpy as np
import pytest
from chunks import MS, PERIOD_NS, ramp

from physis_core.delivery.timeline import Timeline, braking, hermite


def test_a_control_point_is_played_exactly_when_it_is_due() -> None:
    timeline = Timeline()
    chunk = ramp(0, 1000 * MS, start=0.5)
    timeline.commit(chunk)
    for point in range(chunk.points):
        sample = timeline.sample(chunk.time_ns(point))
        assert sample is not None
        assert sample.position == pytest.approx(chunk.positions[point])


def test_there_is_nothing_before_the_begin_and_after_the_validity() -> None:
    timeline = Timeline()
    chunk = ramp(0, 1000 * MS)
    timeline.commit(chunk)
    assert timeline.sample(1000 * MS - 1) is None
    assert timeline.sample(chunk.valid_until_ns - 1) is not None
    assert timeline.sample(chunk.valid_until_ns) is None


def test_a_late_chunk_is_evaluated_where_the_clock_stands() -> None:
    """Its first points are not executed late: nothing is shifted."""
    timeline = Timeline()
    chunk = ramp(1, 1000 * MS, speed=2.0)
    timeline.commit(chunk)
    now_ns = 1000 * MS + 50 * MS
    sample = timeline.sample(now_ns)
    assert sample is not None
    assert sample.position == pytest.approx(2.0 * 0.05)


def test_a_newer_chunk_ends_the_older_one() -> None:
    timeline = Timeline()
    timeline.commit(ramp(0, 1000 * MS))
    newer = ramp(1, 1000 * MS + 3 * PERIOD_NS, start=5.0)
    timeline.commit(newer)
    sample = timeline.sample(newer.due_ns)
    assert sample is not None
    assert sample.chunk is newer
    assert sample.position == pytest.approx(5.0)


def test_a_gap_is_not_interpolated() -> None:
    """A missed chunk leaves a gap; creeping through it would be a motion that nobody planned."""
    timeline = Timeline()
    first = ramp(0, 1000 * MS)
    timeline.commit(first)
    timeline.commit(ramp(2, 1000 * MS + 16 * PERIOD_NS, start=3.0))
    assert timeline.sample(first.valid_until_ns + PERIOD_NS) is None


def test_it_keeps_only_what_is_still_to_be_played() -> None:
    timeline = Timeline()
    for chunk in range(1000):
        timeline.commit(ramp(chunk, chunk * 8 * PERIOD_NS))
        timeline.forget_before(chunk * 8 * PERIOD_NS)
    assert len(timeline) <= 9


def test_position_and_velocity_are_continuous_at_control_points() -> None:
    rng = np.random.default_rng(0)
    first, second = ramp(0, 0), ramp(1, 8 * PERIOD_NS, start=0.3)
    first.positions[:] += rng.normal(0, 0.02, first.positions.shape)
    timeline = Timeline()
    timeline.commit(first)
    timeline.commit(second)
    for point in [*range(1, 8), *range(9, 16)]:
        before = timeline.sample(point * PERIOD_NS - 1)
        after = timeline.sample(point * PERIOD_NS)
        assert before is not None and after is not None
        assert np.abs(before.position - after.position).max() < 1e-6
        assert np.abs(before.velocity - after.velocity).max() < 1e-3


@pytest.mark.parametrize('speed', [0.0, 0.05, 0.5, -3.0])
def test_the_way_to_rest_brakes_evenly_and_ends_at_rest(speed: float) -> None:
    timeline = Timeline()
    timeline.commit(ramp(0, 0, speed=speed))
    sample = timeline.sample(50 * MS)
    assert sample is not None
    rest = braking(sample.chunk, sample, deceleration=5.0)
    assert rest.due_ns == 50 * MS
    assert not rest.velocities[-1].any()
    speeds = np.vstack([sample.velocity, rest.velocities])
    assert np.abs(np.diff(speeds, axis=0)).max() <= 5.0 * 0.02 + 1e-9
    positions = np.vstack([sample.position, rest.positions])
    assert np.diff(positions, axis=0) == pytest.approx(
        0.02 * (speeds[1:] + speeds[:-1]) / 2, abs=0.02 * 5.0 * 0.02 / 2)
    assert rest.positions[-1] == pytest.approx(
        sample.position + np.sign(speed) * speed**2 / 10.0)


def test_hermite_meets_both_ends() -> None:
    states = (np.array([1.0]), np.array([2.0]), np.array([3.0]), np.array([-1.0]))
    begin, end = hermite(*states, 0.5, 0.0), hermite(*states, 0.5, 0.5)
    assert np.concatenate(begin) == pytest.approx([1.0, 2.0])
    assert np.concatenate(end) == pytest.approx([3.0, -1.0])
