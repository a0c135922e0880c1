"""Simulated time follows the steady clock, or says by how much it does not."""

from __future__ import annotations

import pytest

from physis_ros.demo.pace import Beat, Pace

MS = 1_000_000


def test_small_lags_are_caught_up() -> None:
    pace = Pace(0, lag_limit_s=0.1)
    assert [pace.advance_s(time * MS) for time in (10, 90, 100)] == pytest.approx(
        [0.01, 0.08, 0.01])
    assert pace.slipped_s == 0.0
    assert pace.real_time_factor(100 * MS) == 1.0


def test_long_lags_slip_and_are_reported() -> None:
    pace = Pace(0, lag_limit_s=0.1)
    assert pace.advance_s(400 * MS) == pytest.approx(0.1)
    assert pace.slipped_s == pytest.approx(0.3)
    assert pace.real_time_factor(400 * MS) == pytest.approx(0.25)
    assert pace.advance_s(450 * MS) == pytest.approx(0.05)


def test_a_clock_that_stands_still_advances_nothing() -> None:
    pace = Pace(50)
    assert pace.advance_s(50) == 0.0
    assert pace.advance_s(40) == 0.0


def test_beats_keep_their_grid_and_do_not_pile_up() -> None:
    beat = Beat(100.0, 0)
    assert not beat.strikes(9 * MS)
    assert beat.strikes(10 * MS)
    assert beat.strikes(27 * MS)
    assert not beat.strikes(29 * MS)
    assert beat.strikes(95 * MS)  # late by six beats: one strike, and the grid goes on
    assert not beat.strikes(99 * MS)
    assert beat.due_ns == 100 * MS
