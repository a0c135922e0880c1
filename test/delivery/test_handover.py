"""Handover strategies, at control points."""

from __future__ import annotations

import numpy as np
import pytest
from chunks import MS, PERIOD_NS, ramp

from physis_core.delivery.handover import (
    Blend,
    PrefixConditioned,
    Replace,
    TemporalEnsemble,
    make_handover,
)
from physis_core.delivery.timeline import Timeline
from physis_core.errors import InputError


def planned(*chunks: object) -> Timeline:
    timeline = Timeline()
    for chunk in chunks:
        timeline.commit(chunk)  # type: ignore[arg-type]
    return timeline


def test_replace_changes_nothing() -> None:
    chunk = ramp(1, 8 * PERIOD_NS)
    assert Replace().take_over(planned(ramp(0, 0)), chunk) is chunk


def test_blend_starts_at_the_old_plan_and_ends_at_the_new_one() -> None:
    old = ramp(0, 0, points=16)
    new = ramp(1, 8 * PERIOD_NS, start=1.0)
    blended = Blend(4 * PERIOD_NS).take_over(planned(old), new)
    assert blended.positions[0] == pytest.approx(old.positions[8])
    assert blended.positions[4:] == pytest.approx(new.positions[4:])
    steps = np.abs(np.diff(np.vstack([old.positions[6:8], blended.positions]), axis=0)).max()
    assert steps < np.abs(new.positions[0] - old.positions[7]).max() / 2


def test_blend_without_overlap_continues_the_motion_and_brakes_it() -> None:
    old = ramp(0, 0)
    new = ramp(1, 8 * PERIOD_NS, start=1.0)
    blended = Blend(4 * PERIOD_NS).take_over(planned(old), new)
    assert blended.positions[0, 0] == pytest.approx(old.positions[-1, 0] + 0.02, abs=0.006)


def test_the_first_chunk_is_not_blended() -> None:
    chunk = ramp(0, 0)
    assert Blend(4 * PERIOD_NS).take_over(Timeline(), chunk) is chunk


def test_the_ensemble_averages_chunks_that_speak_about_the_same_moment() -> None:
    ensemble = TemporalEnsemble(decay=0.0)
    first = ramp(0, 0, speed=0.0, start=0.0)
    second = ramp(1, 4 * PERIOD_NS, speed=0.0, start=1.0)
    ensemble.take_over(Timeline(), first)
    merged = ensemble.take_over(planned(first), second)
    assert merged.positions[:4] == pytest.approx(0.5)  # both cover these
    assert merged.positions[4:] == pytest.approx(1.0)  # only the new one covers these


def test_the_ensemble_weights_the_newest_most_and_forgets_on_reset() -> None:
    ensemble = TemporalEnsemble(decay=1.0)
    first = ramp(0, 0, speed=0.0, start=0.0)
    second = ramp(1, 4 * PERIOD_NS, speed=0.0, start=1.0)
    ensemble.take_over(Timeline(), first)
    merged = ensemble.take_over(planned(first), second)
    assert merged.positions[0, 0] == pytest.approx(1.0 / (1.0 + np.exp(-1.0)))
    ensemble.reset()
    assert ensemble.take_over(Timeline(), second).positions == pytest.approx(1.0)


def test_a_promised_prefix_is_kept() -> None:
    old = ramp(0, 0, points=12)
    new = ramp(1, 8 * PERIOD_NS, start=3.0)
    strategy = PrefixConditioned(prefix_points=2)
    kept = strategy.take_over(planned(old), new)
    assert kept.positions[:2] == pytest.approx(old.positions[8:10])
    assert kept.positions[2:] == pytest.approx(new.positions[2:])


@pytest.mark.parametrize('strategy', ['replace', 'blend', 'ensemble', 'prefix'])
def test_every_strategy_keeps_times_and_shape(strategy: str) -> None:
    handover = make_handover(strategy, blend_ns=60 * MS, decay=0.5, prefix_points=2)
    old, new = ramp(0, 0, points=12), ramp(1, 8 * PERIOD_NS, start=0.2)
    taken = handover.take_over(planned(old), new)
    assert taken.due_ns == new.due_ns and taken.chunk == 1
    assert taken.positions.shape == taken.velocities.shape == new.positions.shape


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(InputError, match='choose one of replace, blend'):
        make_handover('jump', blend_ns=0, decay=0.0, prefix_points=0)
