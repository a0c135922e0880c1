"""Conversions, checked on published numbers."""

from __future__ import annotations

import pytest

from physis_core.errors import InputError
from physis_core.units import (
    OutputSemantics,
    chunks_per_s,
    ms_from_ns,
    ns_from_s,
    s_from_ns,
)


def test_a_chunk_every_4_083_ms_is_245_chunks_980_frames_and_3919_points_a_second() -> None:
    chunk = OutputSemantics(frames_per_latent=4, control_points_per_latent=16,
                            control_period_s=0.02)
    assert chunks_per_s(0.004083) == pytest.approx(244.9, abs=0.05)
    assert chunk.frames_per_s(0.004083) == pytest.approx(979.7, abs=0.1)
    assert chunk.control_points_per_s(0.004083) == pytest.approx(3918.7, abs=0.1)
    assert chunk.chunk_duration_s == pytest.approx(0.32)


def test_a_chunk_of_two_latents_holds_twice_as_much() -> None:
    chunk = OutputSemantics(2, frames_per_latent=4, control_points_per_latent=16,
                            control_period_s=0.02)
    assert (chunk.frames_per_chunk, chunk.control_points_per_chunk) == (8, 32)
    assert chunk.chunk_duration_s == pytest.approx(0.64)


def test_time_units() -> None:
    assert ns_from_s(1.5) == 1_500_000_000
    assert s_from_ns(1_500_000_000) == 1.5
    assert ms_from_ns(2_500_000) == 2.5


def test_what_makes_no_sense_is_refused() -> None:
    for period_s in (0.0, -1.0, float('nan')):
        with pytest.raises(InputError, match='must be positive'):
            chunks_per_s(period_s)
    with pytest.raises(InputError, match='at least 1'):
        OutputSemantics(0)
