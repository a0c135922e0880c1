"""Goodput counts outputs on time, and beats on which nothing entered as missed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from physis_core.errors import InputError
from physis_core.observability.goodput import PoolGoodput, span_s, stream_goodput

MS = 1_000_000


def times(*milliseconds: int) -> np.ndarray:
    return np.array(milliseconds, np.int64) * MS


def test_outputs_in_time_late_ones_and_empty_beats() -> None:
    account = stream_goodput(times(0, 10, 30, 40), times(5, 19, 36, 52), times(9, 18, 39, 49),
                             10 * MS)
    assert (account.outputs, account.on_time, account.skipped) == (4, 2, 1)
    assert account.on_time_ratio == 2 / 5
    assert account.period_p50_ms == 16
    assert account.response_p50_ms == 7.5


def test_a_source_that_slips_a_little_skips_nothing() -> None:
    account = stream_goodput(times(0, 13, 24), times(1, 14, 25), times(5, 18, 29), 10 * MS)
    assert account.skipped == 0
    assert account.on_time_ratio == 1.0


def test_no_chunks_no_numbers() -> None:
    account = stream_goodput(times(), times(), times(), 10 * MS)
    assert math.isnan(account.on_time_ratio)
    assert math.isnan(account.period_p50_ms)


def test_a_pool_pays_for_all_its_devices_whatever_comes_out() -> None:
    good = stream_goodput(times(0, 10), times(5, 15), times(9, 19), 10 * MS)
    late = stream_goodput(times(0, 10), times(50, 60), times(9, 19), 10 * MS)
    pool = PoolGoodput((good, late), devices=4, wall_s=2.0)
    assert (pool.on_time, pool.on_time_ratio, pool.goodput_per_s) == (2, 0.5, 1.0)
    assert pool.device_s_per_output == 4.0
    assert PoolGoodput((late,), 4, 2.0).device_s_per_output == math.inf


def test_columns_of_different_length_and_an_empty_span_are_refused() -> None:
    with pytest.raises(InputError, match='2 releases, 1 ends and 2 deadlines'):
        stream_goodput(times(0, 1), times(1), times(2, 3), MS)
    with pytest.raises(InputError, match='is empty; measure for longer'):
        span_s(5, 5)
