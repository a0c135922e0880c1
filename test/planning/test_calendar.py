"""Reservations that repeat every period."""

from hypothesis import given
from hypothesis import strategies as st

from physis_core.planning.calendar import Calendar


def test_takes_the_first_gap():
    calendar = Calendar(10)
    assert calendar.reserve(3, 4) == 3
    assert calendar.reserve(4, 2) == 7
    assert calendar.reserve(25, 4) == 29  # 9 to 13: around the end of the period
    assert calendar.reserve(0, 1) is None


def test_appends_back_to_back():
    calendar = Calendar(10)
    assert [calendar.append(8, 3), calendar.append(0, 3), calendar.append(25, 4)] == [8, 1, 34]
    assert calendar.append(0, 1) is None


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 200), st.integers(1, 12)),
                                    max_size=12), st.booleans())
def test_reservations_never_overlap_and_never_come_early(period, requests, dense):
    calendar = Calendar(period)
    taken = []
    for ready, length in requests:
        start = (calendar.append if dense else calendar.reserve)(ready, length)
        if start is not None:
            assert ready <= start < ready + period
            taken += [(start + offset) % period for offset in range(length)]
    assert len(taken) == len(set(taken)) == calendar.reserved_us


@given(st.integers(2, 30), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=8),
       st.integers(0, 60), st.integers(1, 6))
def test_finds_a_gap_where_there_is_one(period, requests, ready, length):
    calendar = Calendar(period)
    taken = set()
    for earlier, size in requests:
        start = calendar.reserve(earlier, size)
        if start is not None:
            taken |= {(start + offset) % period for offset in range(size)}
    free = [start for start in range(ready, ready + period)
            if length <= period
            and not taken & {(start + offset) % period for offset in range(length)}]
    assert calendar.reserve(ready, length) == (free[0] if free else None)
