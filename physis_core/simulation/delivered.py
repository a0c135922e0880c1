"""What the robot gets of a simulated stream: its chunks through the real output buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from physis_core.delivery.buffer import DeliveryCounts, OutputBuffer
from physis_core.delivery.chunk import PlannedChunk
from physis_core.delivery.handover import Replace
from physis_core.errors import InputError
from physis_core.simulation.twin import ChunkRecord


def delivered(chunks: Sequence[ChunkRecord], period_ns: int, offset_ns: int,
              max_age_ns: int | None = None) -> DeliveryCounts:
    """Offer finished chunks to an output buffer, each due ``offset_ns`` after its planned entrance.

    Args:
        chunks: of one stream.
        period_ns: interval between deadlines, and what one chunk's motion covers.
        offset_ns: from the planned entrance to the deadline.
        max_age_ns: an observation older than this when its action is due is not played; by
            default ten periods past the deadline.

    Raises:
        InputError: the period or the offset is not positive.
    """
    if period_ns < 1 or offset_ns < 1:
        raise InputError(f'period {period_ns} ns, deadline {offset_ns} ns after the entrance; both '
                         'must be positive')
    limit_ns = offset_ns + 10 * period_ns if max_age_ns is None else max_age_ns
    buffer = OutputBuffer(Replace(), period_ns, limit_ns)
    still = np.zeros((2, 1))
    for record in chunks:
        if record.output_ns is None:
            continue
        due_ns = record.planned_ns + offset_ns
        buffer.offer(PlannedChunk(
            epoch=0, chunk=record.chunk, due_ns=due_ns, period_ns=period_ns,
            valid_until_ns=due_ns + 2 * period_ns, capture_ns=record.planned_ns,
            received_ns=record.planned_ns, started_ns=record.entered_ns,
            finished_ns=record.output_ns, positions=still, velocities=still), record.output_ns)
    return buffer.counts
