"""A stream is admitted whole, by what the planner says, or refused with nothing changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from doors import GRAPH, MODEL, SLO_400_MS, door, until
from replay import TIMEOUT_S, Recorded, largest_error, tiny

from physis_core.errors import InputError, Refused
from physis_core.models.registry import describe
from physis_core.planning.admission import NoRoom
from physis_core.planning.cluster import Cluster, Device, bare_cluster
from physis_core.planning.profile import BatchTimes, BlockGroup, Profile, given_profile
from physis_core.planning.slo import SLO
from physis_core.runtime.front_door import FrontDoor, Visitor
from physis_core.runtime.stream import Stream


@pytest.fixture(scope='module')
def shared() -> Iterator[FrontDoor]:
    with door() as front:
        yield front


@pytest.fixture
def front(shared: FrontDoor) -> Iterator[FrontDoor]:
    yield shared
    for stream in shared.streams:
        stream.close()
    until(lambda: not shared.overloads)


def fill(front: FrontDoor, slo: SLO) -> tuple[list[Stream], Refused]:
    """Open streams until one is refused."""
    streams = []
    while True:
        try:
            streams.append(front.open_stream('virtual', slo))
        except Refused as error:
            return streams, error


def test_streams_are_admitted_up_to_what_the_planner_promises_and_then_refused_in_numbers(
        front: FrontDoor) -> None:
    streams, error = fill(front, SLO_400_MS)
    assert 14 <= len(streams) <= 16
    assert isinstance(error, NoRoom)
    assert error.shortage.resource != 'memory'
    assert 'missing' in str(error)


def test_a_refusal_changes_nothing_and_a_departure_makes_room(front: FrontDoor) -> None:
    streams, _ = fill(front, SLO_400_MS)
    before = front.reserved()
    for _ in range(3):
        with pytest.raises(Refused):
            front.open_stream('virtual', SLO_400_MS)
    assert front.reserved() == before
    streams.pop().close()
    streams.append(front.open_stream('virtual', SLO_400_MS))
    assert front.reserved() == before
    for stream in streams:
        stream.close()
    assert front.reserved() == [(0.0, 0), (0.0, 0)]


def test_every_admitted_stream_delivers(front: FrontDoor) -> None:
    streams, _ = fill(front, SLO_400_MS)
    for stream in streams:
        chunk = stream.next_chunk(TIMEOUT_S)
        assert chunk is not None
        assert chunk.due_ns > chunk.release_ns


def test_another_model_and_an_impossible_promise_are_refused(front: FrontDoor) -> None:
    with pytest.raises(Refused, match='`wan` is not served here'):
        front.open_stream('wan', SLO_400_MS)
    with pytest.raises(InputError, match='shorter than its slowest stage'):
        front.open_stream('virtual', SLO(1000))
    with pytest.raises(InputError, match='stages of a chunk alone take'):
        front.open_stream('virtual', SLO(400_000, max_response_us=100))
    with pytest.raises(InputError, match='emits no frames'):
        front.open_stream('virtual', '2 frames/s')
    assert front.reserved() == [(0.0, 0), (0.0, 0)]


def test_a_goal_in_the_users_words_sets_the_pace(front: FrontDoor) -> None:
    stream = front.open_stream('virtual', '2 chunks/s')
    assert stream.options.period_ns == 500_000_000


def test_slots_are_a_limit_of_their_own() -> None:
    with door(slots=2) as front:
        streams, error = fill(front, SLO_400_MS)
        assert len(streams) == 2
        assert 'all 2 stream slots are in use' in str(error)
        assert front.reserved()[0][0] > 0
        streams[0].close()
        front.open_stream('virtual', SLO_400_MS)


def test_memory_is_reserved_and_what_is_missing_is_named() -> None:
    group = BlockGroup(GRAPH.blocks, BatchTimes(*((20_000, 30_000),) * 3), kv_bytes=10**9)
    profile = Profile('virtual', 'given', 'none', 'given', GRAPH, 0, (group,))
    cluster = Cluster((Device('given', 5 * 10**9),) * 2)
    with FrontDoor(MODEL, profile, cluster, 8) as front:
        streams, error = fill(front, SLO_400_MS)
        assert len(streams) == 2  # four stages of 1 GB each, 10 GB in all
        assert 'GB of memory are missing' in str(error)


def test_a_stage_off_its_profile_is_reported() -> None:
    optimistic = given_profile('virtual', GRAPH, (10_000, 15_000))
    with FrontDoor(MODEL, optimistic, bare_cluster(1, 1e6), 2) as front:
        stream = front.open_stream('virtual', SLO(100_000))
        for _ in range(40):
            assert stream.next_chunk(TIMEOUT_S) is not None
        reports = front.off_profile()
        assert {report.device for report in reports} == {0}
        assert {report.block for report in reports} == {0, 1}
        assert 'its profile says 10000 us' in str(reports[0])


def test_streams_of_a_real_model_compute_what_the_oracle_does() -> None:
    """Batched with whoever was there: within the rounding of batched products."""
    spec = tiny()
    graph = describe(spec).graph
    profile = given_profile('dit', graph, (1000, 1100, 1200, 1300))
    with FrontDoor(spec, profile, bare_cluster(2, 1e6), 6) as front:
        streams = [Recorded(front.open_stream('dit', SLO(50_000, 10**6), visitor=Visitor(seed)),
                            describe(spec), seed) for seed in range(6)]
        for recorded in streams:
            recorded.observe()
        taken: list[list] = [[] for _ in streams]
        for _ in range(8):
            for recorded, chunks in zip(streams, taken, strict=True):
                chunks.append(recorded.chunk())
                recorded.observe()
        for recorded, chunks in zip(streams, taken, strict=True):
            assert largest_error(spec, recorded, chunks) <= 2e-5
        assert np.concatenate([log.latest()['batch']
                               for log in front.engine.stage_logs()]).max() > 1
