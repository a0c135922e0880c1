"""Frequencies are measured, and fall to zero when events stay away."""

from __future__ import annotations

import math

import pytest

from physis_core.observability.frequency import CountedFrequency, Frequency

MS = 1_000_000


def beat(frequency: Frequency, period_ms: int, begin_ms: int, end_ms: int) -> None:
    for now_ms in range(begin_ms, end_ms, period_ms):
        frequency.count(now_ms * MS)


def test_a_steady_beat_has_its_frequency() -> None:
    frequency = Frequency()
    beat(frequency, 160, 0, 8000)
    assert frequency.hz(8000 * MS) == pytest.approx(6.25)


def test_it_is_zero_soon_after_the_last_event() -> None:
    frequency = Frequency()
    beat(frequency, 33, 0, 5000)
    assert frequency.hz(5500 * MS) == pytest.approx(1000 / 33, rel=0.01)
    assert frequency.hz(6000 * MS) == 0.0


def test_something_slow_is_not_called_silent_between_its_events() -> None:
    frequency = Frequency(window_s=5.0)
    beat(frequency, 3000, 0, 30_000)
    assert frequency.hz(29_500 * MS) == pytest.approx(1 / 3)


def test_one_event_is_no_frequency_yet() -> None:
    frequency = Frequency()
    assert frequency.hz(0) == 0.0
    frequency.count(0)
    assert math.isnan(frequency.hz(10 * MS))
    assert frequency.hz(5000 * MS) == 0.0


def test_two_events_at_once_do_not_divide_by_zero() -> None:
    frequency = Frequency()
    frequency.count(0)
    frequency.count(0)
    assert frequency.hz(0) == 0.0


def test_a_fast_beat_is_bounded() -> None:
    frequency = Frequency(most=100)
    beat(frequency, 1, 0, 5000)
    assert frequency.hz(5000 * MS) == pytest.approx(1000.0)


def test_a_counter_of_another_process() -> None:
    frequency = CountedFrequency(window_s=2.0)
    assert math.isnan(frequency.hz())
    for now_ms in range(0, 4000, 20):
        frequency.read(now_ms // 4, now_ms * MS)
    assert frequency.hz() == pytest.approx(250.0)
    frequency.read(0, 4000 * MS)  # it was restarted
    assert math.isnan(frequency.hz())


def test_a_counter_that_is_read_twice_at_once() -> None:
    frequency = CountedFrequency()
    frequency.read(3, 5)
    frequency.read(3, 5)
    assert frequency.hz() == 0.0
