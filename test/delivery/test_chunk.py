"""Chunks are checked where they enter, and know their age in its four parts."""

from __future__ import annotations

import numpy as np
import pytest
from chunks import MS, ramp

from physis_core.delivery.chunk import finite_difference, finite_positions
from physis_core.errors import InputError


def test_the_parts_of_the_age_add_up() -> None:
    chunk = ramp(0, 1000 * MS)
    age = chunk.age_at(1004 * MS)
    assert (age.capture_ns, age.queue_ns, age.response_ns, age.handoff_ns) == (
        10 * MS, 20 * MS, 30 * MS, 44 * MS)
    assert age.total_ns == 1004 * MS - chunk.capture_ns


@pytest.mark.parametrize('shape', [(8, 5), (8,), (0, 6), (2, 8, 6)])
def test_a_wrong_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match='shape'):
        finite_positions('chunk 3', np.zeros(shape), 6)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(value: float) -> None:
    positions = np.zeros((8, 6))
    positions[5, 2] = value
    with pytest.raises(InputError, match='chunk 3: control point 5 of joint 2'):
        finite_positions('chunk 3', positions, 6)


def test_one_point_has_no_velocity() -> None:
    assert not finite_difference(np.ones((1, 3)), 20 * MS).any()
