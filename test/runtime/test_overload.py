"""Overload is seen where it is, named, and answered at the entrance; then it is over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from doors import GRAPH, SLO_400_MS, door, until

from physis_core.errors import Refused
from physis_core.planning.plan import Plan, ranks_from_devices
from physis_core.runtime.front_door import Visitor
from physis_core.runtime.overload import WINDOW_LOOKS, Overload, OverloadWatch, Queued
from physis_core.runtime.relief import MOST_SHED, Relief
from physis_core.runtime.stream import FinishedChunk, Stream, StreamOptions
from physis_core.runtime.telemetry import STAGE_RECORD

PLAN = Plan('apart', GRAPH, ranks_from_devices([0, 1, 0, 1]))
LEAST = 4


def ended(*tasks: tuple[int, int, int, int]) -> np.ndarray:
    """Records of (stream, chunk, step, block)."""
    records = np.zeros(len(tasks), STAGE_RECORD)
    for record, (stream, chunk, step, block) in zip(records, tasks, strict=True):
        record['stream'], record['chunk'] = stream, chunk
        record['step'], record['block'], record['batch'] = step, block, 1
        record['start_ns'] = 5_000_000
    return records


def watch() -> OverloadWatch:
    return OverloadWatch(GRAPH, devices=2, slots=8, max_batch=LEAST // 2)


def look(watch: OverloadWatch, released: int, done: Sequence[int], held_back: int = 0
         ) -> list[Overload]:
    """One look at stream 3, whose chunk ``done[s]`` has just ended at stage s."""
    tasks = [(3, chunk, *GRAPH.step_block(stage)) for stage, chunk in enumerate(done)]
    return watch.look([ended(*tasks[::2]), ended(*tasks[1::2])],
                      [Queued(3, PLAN, 0, released, held_back)])


def test_a_steady_stream_is_no_overload_and_neither_is_one_that_fills_up() -> None:
    steady, filling = watch(), watch()
    for beat in range(4 * WINDOW_LOOKS):
        assert look(steady, beat + 8, [beat + 3, beat + 2, beat + 1, beat]) == []
        assert look(filling, beat + 1, [beat, max(0, beat - 2), max(0, beat - 4),
                                        max(0, beat - 6)]) == []


def test_a_growing_queue_is_named_by_device_stage_and_stream() -> None:
    watch_ = watch()
    found: list[Overload] = []
    for beat in range(2 * WINDOW_LOOKS):
        done = beat // 4  # stage 1 does a quarter of what stage 0 hands on
        found = look(watch_, beat + 1, [beat, done, done, done])
    assert [(one.device, one.step, one.block, one.stream) for one in found] == [(1, 0, 1, 3)]
    assert found[0].growth >= LEAST
    assert 'device 1 is overloaded' in str(found[0])
    assert 'step 0 block 1 and of stream 3' in str(found[0])
    assert found[0].wait_ms == 5.0


def test_a_full_queue_that_holds_streams_back_stays_an_overload_until_it_has_shrunk() -> None:
    watch_ = watch()
    for beat in range(WINDOW_LOOKS):
        look(watch_, beat + 10, [beat, beat, beat, beat])
    for lost in range(1, 6):
        beat = WINDOW_LOOKS + lost
        assert look(watch_, beat + 10, [beat] * 4, held_back=lost)
    for _ in range(3):
        found = look(watch_, beat + 10, [beat + 7] * 4, held_back=lost)
    assert found == []


def test_an_epoch_starts_with_empty_queues() -> None:
    watch_ = watch()
    for beat in range(WINDOW_LOOKS):
        watch_.look([ended((3, beat, 0, 0)), ended()], [Queued(3, PLAN, 0, beat + 1, 0)])
    watch_.look([ended(), ended()], [Queued(3, PLAN, 1, 1, 0)])
    assert watch_._past[-1][3].tolist() == [1, 0]


def test_streams_with_a_promise_are_judged_apart_from_best_effort_ones() -> None:
    """The guest, stream 3, gets nothing through; the promised stream 4 keeps up."""
    watch_ = watch()
    for beat in range(2 * WINDOW_LOOKS):
        own = [(4, beat, *GRAPH.step_block(stage)) for stage in range(4)]
        found = watch_.look([ended(*own[::2]), ended(*own[1::2])],
                            [Queued(3, PLAN, 0, 3, beat, promised=False),
                             Queued(4, PLAN, 0, beat + 1, 0)])
    assert [(one.device, one.stream, one.promised) for one in found] == [(0, 3, False)]


class _Ways:
    """What relief asked of the engine."""

    def __init__(self) -> None:
        self.asked: dict[Stream, tuple[bool, int]] = {}

    def __call__(self, stream: Stream, yields: bool, keep: int) -> None:
        self.asked[stream] = (yields, keep)


def stream(slot: int, priority: int) -> Stream:
    from physis_core.runtime.boards import ObservationBoard
    return Stream(slot, StreamOptions(priority=priority, period_ns=200_000_000), PLAN,
                  ObservationBoard.create({}), False, lambda stream, what: None)


def test_the_newest_stream_of_the_lowest_priority_sheds_first_and_recovers_step_by_step() -> None:
    ways = _Ways()
    relief = Relief(ways)
    high, low, newer = stream(0, 1), stream(1, 0), stream(2, 0)
    overload = Overload(0, 0, 0, 0, 9, 5, 0, 1.0)
    for keep in (2, 4, MOST_SHED):
        relief.answer([overload], [high, low, newer])
        assert ways.asked == {newer: (True, keep)}
    relief.answer([overload], [high, low, newer])
    assert ways.asked[low] == (True, 2)
    assert relief.shedding == {2: MOST_SHED, 1: 2}
    for keep in (4, 2, 1):
        relief.answer([], [high, low, newer])
        assert ways.asked[newer] == (keep > 1, keep)
    assert ways.asked[low] == (False, 1)
    assert relief.shedding == {}
    assert high not in ways.asked


def test_streams_with_a_promise_shed_only_where_they_are_too_many_by_themselves() -> None:
    ways = _Ways()
    relief = Relief(ways)
    promised, guest = stream(0, 0), stream(1, -1)
    for _ in range(5):
        relief.answer([Overload(0, 0, 0, 0, 9, 5, 0, 1.0, promised=False)], [promised, guest])
    assert relief.shedding == {1: MOST_SHED}
    relief.answer([Overload(0, 0, 0, 0, 9, 5, 0, 1.0)], [promised, guest])
    assert relief.shedding == {1: MOST_SHED, 0: 2}


def test_the_only_stream_of_a_device_never_sheds() -> None:
    ways = _Ways()
    Relief(ways).answer([Overload(0, 0, 0, 0, 9, 5, 0, 1.0)], [stream(0, 0)])
    assert ways.asked == {}


def test_best_effort_streams_are_shed_and_the_door_says_why() -> None:
    """1.3 times what fits: the door says what is wrong, and lets streams in when it is over."""
    with door() as front:
        for _ in range(12):
            front.open_stream('virtual', SLO_400_MS)
        guests = [front.open_stream('virtual', SLO_400_MS, visitor=Visitor(priority=-1))
                  for _ in range(10)]
        until(lambda: front.overloads)
        assert front.overloads[0].device in (0, 1)
        with pytest.raises(Refused, match=r'during an overload: device \d is overloaded'):
            front.open_stream('virtual', SLO_400_MS, visitor=Visitor(priority=-1))
        until(lambda: front.shedding)
        until(lambda: sum(guest.shed for guest in guests) > 5)
        assert all(one.in_flight <= one.plan.max_in_flight for one in front.streams)
        for guest in guests:
            guest.close()
        until(lambda: not front.overloads and not front.shedding)
        front.open_stream('virtual', SLO_400_MS, visitor=Visitor(priority=-1))


def test_best_effort_streams_never_keep_one_with_a_promise_out() -> None:
    with door() as front:
        guests = [front.open_stream('virtual', SLO_400_MS, visitor=Visitor(priority=-1))
                  for _ in range(40)]
        until(lambda: front.overloads)
        front.open_stream('virtual', SLO_400_MS)
        until(lambda: sum(guest.held_back for guest in guests) > 5)


def test_beats_on_which_nothing_may_enter_are_counted_as_they_pass() -> None:
    held = stream(0, 0)
    period_ns = held.period_ns
    held.next_release_ns = 10 * period_ns
    waiting = held.options.queue_chunks + held.plan.max_in_flight
    for _ in range(waiting):
        held.enter(0)
        held.deliver(FinishedChunk(0, 1, 0, {}, 0, 0, 0, 0, 0, 0, ()))
    held.hand_over()
    held.hold_back(12 * period_ns)
    assert held.held_back == 0  # it is the user who is slow
    for _ in range(waiting):
        held.next_chunk(0)
    held.released += held.plan.max_in_flight
    for now, beats in ((10.5, 0), (11.0, 1), (11.5, 1), (13.2, 3), (14.0, 4)):
        held.hold_back(round(now * period_ns))
        assert held.held_back == beats
    held.next_release_ns = 20 * period_ns  # one has entered meanwhile
    held.hold_back(round(21.5 * period_ns))
    assert held.held_back == 5
