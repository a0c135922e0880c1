"""Four frequencies that are never confused, and ages in a window."""

from __future__ import annotations

import math

import pytest

from physis_core.observability.percentiles import Window
from physis_core.observability.stream_account import AGE_PARTS, StreamAccount

MS = 1_000_000
PERIOD_MS = 160


def account(warm_up_chunks: int = 0) -> StreamAccount:
    return StreamAccount(window_s=5.0, warm_up_chunks=warm_up_chunks)


def deliver(account: StreamAccount, begin_ms: int, end_ms: int, *, fresh: bool = True,
            late_ms: int = -30) -> None:
    for now_ms in range(begin_ms, end_ms, PERIOD_MS):
        now_ns = now_ms * MS
        account.finished(now_ns + late_ms * MS, now_ns, now_ns, dropped=False)
        account.delivered((now_ms if fresh else begin_ms) * MS, now_ns)
        account.took_effect((10 * MS, 20 * MS, 30 * MS, 40 * MS), now_ns)


def test_replan_counts_only_newer_observations() -> None:
    kept = account()
    deliver(kept, 1000, 6000)
    numbers = kept.numbers(6000 * MS)
    assert numbers.chunk_hz == numbers.replan_hz == pytest.approx(6.25)
    deliver(kept, 6120, 12_000, fresh=False)
    numbers = kept.numbers(12_000 * MS)
    assert numbers.chunk_hz == pytest.approx(6.25)
    assert numbers.replan_hz == 0.0


def test_every_second_chunk_with_a_new_observation_is_half_the_rate() -> None:
    kept = account()
    for count in range(50):
        kept.delivered((1 + count // 2) * MS, count * PERIOD_MS * MS)
    numbers = kept.numbers(50 * PERIOD_MS * MS)
    assert numbers.chunk_hz == pytest.approx(6.25)
    assert numbers.replan_hz == pytest.approx(3.125, rel=0.03)


def test_the_servo_is_counted_for_itself() -> None:
    kept = account()
    assert math.isnan(kept.numbers(0).servo_hz)
    for now_ms in range(0, 3000, 20):
        kept.servo_played(now_ms // 4, now_ms * MS)
    numbers = kept.numbers(3000 * MS)
    assert numbers.servo_hz == pytest.approx(250.0)
    assert numbers.chunk_hz == 0.0


def test_the_age_and_its_parts() -> None:
    kept = account()
    deliver(kept, 1000, 6000)
    numbers = kept.numbers(6000 * MS)
    assert numbers.age_s.p50 == numbers.age_s.max == pytest.approx(0.1)
    assert [numbers.part_s[part].mean for part in AGE_PARTS] == pytest.approx(
        [0.01, 0.02, 0.03, 0.04])


def test_a_cold_start_is_left_out_of_ages_and_deadlines() -> None:
    kept = account(warm_up_chunks=2)
    for now_ms in (0, 160):
        kept.finished(now_ms * MS + 5000 * MS, now_ms * MS, now_ms * MS,
                      dropped=False)
        kept.took_effect((0, 0, 5000 * MS, 0), now_ms * MS)
    deliver(kept, 320, 3000)
    numbers = kept.numbers(3000 * MS)
    assert numbers.age_s.max == pytest.approx(0.1)
    assert numbers.on_time_ratio == 1.0


def test_deadlines_in_the_window() -> None:
    kept = account()
    deliver(kept, 0, 1600)
    deliver(kept, 1600, 3200, late_ms=20)
    numbers = kept.numbers(3200 * MS)
    assert numbers.on_time_ratio == pytest.approx(0.5)
    assert numbers.response_lateness_s.max == pytest.approx(0.02)


def test_an_epoch_is_not_mixed_with_the_one_before() -> None:
    kept = account()
    deliver(kept, 0, 3000, late_ms=20)
    kept.begin_epoch()
    numbers = kept.numbers(3000 * MS)
    assert math.isnan(numbers.on_time_ratio) and math.isnan(numbers.age_s.p50)
    assert numbers.chunk_hz == 0.0


def test_rates_begin_anew_after_a_wanted_pause() -> None:
    kept = account()
    deliver(kept, 0, 3000)
    kept.resume(3500 * MS)
    for now_ms in (3000, 4299):  # the first chunk is awaited, and a little late
        assert math.isnan(kept.numbers(now_ms * MS).chunk_hz)
    assert kept.numbers(4301 * MS).chunk_hz == 0.0  # it is missed
    deliver(kept, 4400, 5000)
    assert kept.numbers(5000 * MS).chunk_hz == pytest.approx(6.25)


def test_a_window_forgets_and_is_bounded() -> None:
    window = Window(window_s=1.0, most=100)
    for value in range(1000):
        window.add(float(value), value * MS)
    assert len(window) == 100
    assert window.summary(1000 * MS).p50 == pytest.approx(949.5)
    assert math.isnan(window.summary(10_000 * MS).max)
