"""Deadlines: late chunks are counted and delivered if useful, lateness never accumulates."""

from __future__ import annotations

import pytest
from chunks import MS, PERIOD_NS, ramp

from physis_core.delivery.buffer import OutputBuffer, Verdict
from physis_core.delivery.handover import Replace

CHUNK_NS = 8 * PERIOD_NS


@pytest.fixture
def buffer() -> OutputBuffer:
    buffer = OutputBuffer(Replace(), CHUNK_NS, max_age_ns=500 * MS)
    buffer.begin_epoch(1)
    return buffer


def test_a_chunk_in_time_is_on_time(buffer: OutputBuffer) -> None:
    chunk = ramp(0, 1000 * MS)
    delivery = buffer.offer(chunk, 970 * MS)
    assert delivery.verdict is Verdict.ON_TIME
    assert delivery.chunk is chunk
    assert (buffer.counts.delivered, buffer.counts.missed) == (1, 0)
    assert buffer.depth(970 * MS) == 1
    assert buffer.depth(1000 * MS) == 0


def test_a_late_chunk_is_counted_and_delivered_with_its_own_times(buffer: OutputBuffer) -> None:
    late = ramp(0, 1000 * MS, finished_ns=1050 * MS)
    delivery = buffer.offer(late, 1050 * MS)
    assert delivery.verdict is Verdict.LATE
    assert delivery.chunk is not None and delivery.chunk.due_ns == 1000 * MS
    assert (buffer.counts.delivered, buffer.counts.missed) == (1, 1)


def test_lateness_of_one_chunk_is_not_passed_on(buffer: OutputBuffer) -> None:
    buffer.offer(ramp(0, 1000 * MS, finished_ns=1100 * MS), 1100 * MS)
    second = ramp(1, 1000 * MS + CHUNK_NS)
    assert buffer.offer(second, second.finished_ns).verdict is Verdict.ON_TIME
    assert buffer.counts.reanchored == 0


def test_a_chunk_with_nothing_left_to_play_is_dropped(buffer: OutputBuffer) -> None:
    chunk = ramp(0, 1000 * MS, finished_ns=1140 * MS)
    assert buffer.offer(chunk, 1140 * MS).verdict is Verdict.TOO_LATE
    assert (buffer.counts.delivered, buffer.counts.missed, buffer.counts.dropped) == (0, 1, 1)
    assert buffer.plan.sample(1140 * MS) is None


def test_an_action_of_an_old_observation_is_dropped(buffer: OutputBuffer) -> None:
    chunk = ramp(0, 1000 * MS, capture_ns=499 * MS)
    assert buffer.offer(chunk, 970 * MS).verdict is Verdict.TOO_OLD


def test_nothing_of_another_epoch_is_delivered_or_counted(buffer: OutputBuffer) -> None:
    buffer.begin_epoch(2)
    assert buffer.offer(ramp(0, 1000 * MS, epoch=1), 970 * MS).verdict is Verdict.OLD_EPOCH
    assert buffer.counts.dropped == 0


def test_a_reset_empties_the_plan(buffer: OutputBuffer) -> None:
    buffer.offer(ramp(0, 1000 * MS), 970 * MS)
    buffer.begin_epoch(2)
    assert buffer.plan.sample(1000 * MS) is None
    assert buffer.depth(970 * MS) == 0


def test_an_older_chunk_never_replaces_a_newer_one(buffer: OutputBuffer) -> None:
    buffer.offer(ramp(1, 1000 * MS + CHUNK_NS), 1000 * MS)
    assert buffer.offer(ramp(0, 1000 * MS), 1000 * MS).verdict is Verdict.OUT_OF_ORDER


def test_a_pace_that_begins_anew_is_counted(buffer: OutputBuffer) -> None:
    buffer.offer(ramp(0, 1000 * MS), 970 * MS)
    buffer.offer(ramp(1, 1000 * MS + 2 * CHUNK_NS), 970 * MS + 2 * CHUNK_NS)
    buffer.offer(ramp(2, 1000 * MS + 3 * CHUNK_NS), 970 * MS + 3 * CHUNK_NS)
    assert buffer.counts.reanchored == 1


def test_the_next_deadline_follows_the_beat(buffer: OutputBuffer) -> None:
    assert buffer.next_due_ns(500 * MS) == 500 * MS
    buffer.offer(ramp(0, 1000 * MS), 970 * MS)
    assert buffer.next_due_ns(980 * MS) == 1000 * MS + CHUNK_NS
    assert buffer.next_due_ns(1000 * MS + CHUNK_NS + 1) == 1000 * MS + 2 * CHUNK_NS


def test_the_depth_is_bounded_by_what_is_still_to_come(buffer: OutputBuffer) -> None:
    for chunk in range(500):
        offered = ramp(chunk, 1000 * MS + chunk * CHUNK_NS)
        buffer.offer(offered, offered.finished_ns)
        assert buffer.depth(offered.finished_ns) <= 1
        assert len(buffer.plan) <= 20
