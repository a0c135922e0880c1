"""Simulated chunks through the real output buffer."""

from dataclasses import replace

import pytest

from physis_core.errors import InputError
from physis_core.graph import StageGraph
from physis_core.planning.modes import full_split
from physis_core.simulation.delivered import delivered
from physis_core.simulation.jitter import Jitter
from physis_core.simulation.twin import Stall, Stream, Twin

MS = 1_000_000


def chunks_of(jitter=0.0, stalls=(), period_us=2200):
    plan = replace(full_split(StageGraph(2, 5), 10), period_us=period_us, max_in_flight=60)
    stream = Stream(plan, lambda block, batch: 2 * MS, chunks=200)
    return Twin([stream], Jitter(jitter), stalls=stalls).run().chunks[0]


def test_a_steady_stream_is_on_time():
    counts = delivered(chunks_of(), 2_200_000, 20 * MS)
    assert (counts.delivered, counts.missed, counts.reanchored) == (200, 0, 0)


def test_a_later_deadline_misses_less():
    missed = [delivered(chunks_of(0.1), 2_200_000, offset_ms * MS).missed
              for offset_ms in (20, 22, 24, 30)]
    assert missed == sorted(missed, reverse=True)
    assert missed[0] > 0 and missed[-1] == 0


def test_a_stall_is_survived():
    counts = delivered(chunks_of(stalls=[Stall(4, 100 * MS, 40 * MS)], period_us=3000),
                       3 * MS, 21 * MS)
    assert counts.dropped > 0 and counts.missed > counts.dropped
    assert counts.delivered + counts.dropped == 200


def test_deadlines_are_positive():
    with pytest.raises(InputError, match='both must be positive'):
        delivered([], 0, 1)
