"""Chunks to test with."""

from __future__ import annotations

import numpy as np

from physis_core.delivery.chunk import PlannedChunk, finite_difference

MS = 1_000_000
PERIOD_NS = 20 * MS


def ramp(chunk: int, due_ns: int, *, start: float = 0.0, speed: float = 1.0, points: int = 8,
         joints: int = 2, epoch: int = 1, finished_ns: int | None = None,
         capture_ns: int | None = None) -> PlannedChunk:
    """Joints that move at ``speed`` rad/s from ``start`` at ``due_ns``."""
    times_s = np.arange(points) * PERIOD_NS * 1e-9
    positions = np.repeat((start + speed * times_s)[:, None], joints, 1)
    finished_ns = due_ns - 40 * MS if finished_ns is None else finished_ns
    capture_ns = due_ns - 100 * MS if capture_ns is None else capture_ns
    return PlannedChunk(
        epoch, chunk, due_ns, PERIOD_NS, due_ns + points * PERIOD_NS, capture_ns,
        capture_ns + 10 * MS, capture_ns + 30 * MS, finished_ns, positions,
        finite_difference(positions, PERIOD_NS))
