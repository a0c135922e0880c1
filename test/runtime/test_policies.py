"""The policies, one decision at a time, and their goodput in the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from physis_core.errors import InputError
from physis_core.graph import StageGraph, Task
from physis_core.planning.plan import BatchRule, Plan, Prediction, ranks_from_devices
from physis_core.runtime.dispatch import Batch, Dispatcher, WaitUntil, Work
from physis_core.runtime.policies import POLICIES, policy
from physis_core.simulation.twin import Stream, Twin

RULE = BatchRule(3, across_steps=True)


def work(stream: int, deadline: int, arrived: int, step: int = 0, block: int = 0,
         yields: bool = False) -> Work:
    return Work(stream, 0, Task(0, step, block), deadline, arrived_ns=arrived, yields=yields)


def make(name: str, rule: BatchRule = RULE) -> Dispatcher:
    return policy(name)(rule, lambda block, batch: 10 * batch, [])


def chosen(dispatcher: Dispatcher, *ready: Work) -> list[int]:
    batch = dispatcher.next_batch(100, ready)
    assert isinstance(batch, Batch)
    return [member.stream for member in batch.members]


READY = (work(0, 500, arrived=3), work(1, 300, arrived=9), work(2, 400, arrived=1),
         work(3, 900, arrived=2, block=1))


def test_fifo_takes_one_task_in_order_of_arrival() -> None:
    assert chosen(make('fifo'), *READY) == [2]


def test_edf_takes_one_task_by_deadline() -> None:
    assert chosen(make('edf'), *READY) == [1]


def test_always_batch_takes_the_largest_batch_even_past_a_deadline() -> None:
    assert chosen(make('always_batch'), *READY) == [2, 0, 1]
    hopeless = [work(stream, 105, arrived=stream) for stream in range(5)]
    assert chosen(make('always_batch'), *hopeless) == [0, 1, 2]


def test_always_batch_keeps_to_the_batch_rule() -> None:
    ready = (work(0, 1, 0, step=0), work(1, 1, 1, step=1), work(0, 1, 2, step=1))
    assert chosen(make('always_batch', BatchRule(3)), *ready) == [1, 0]
    apart = BatchRule(3, across_steps=True, across_streams=False)
    assert chosen(make('always_batch', apart), *ready) == [0, 0]


def test_deadline_grows_a_batch_only_while_its_tightest_member_stays_on_time() -> None:
    assert sorted(chosen(make('deadline'), *READY)) == [0, 1, 2]
    tight = (work(0, 115, arrived=0), work(1, 900, arrived=0), work(2, 900, arrived=0))
    assert chosen(make('deadline'), *tight) == [0]


def test_who_gives_way_is_served_last_and_in_small_batches_of_its_own_kind() -> None:
    yielding = [work(stream, 105, 0, yields=True) for stream in (7, 8)]
    assert sorted(chosen(make('deadline'), *yielding, *READY)) == [0, 1, 2]
    assert chosen(make('deadline'), *yielding) == [7]


def test_who_gives_way_goes_first_only_if_nobody_else_falls_behind_plan_by_that() -> None:
    """A batch of one takes 10 and one of three 30, so that the other has ended at 140."""
    guest = work(7, 900, 0, yields=True)
    for planned, first in ((140, 7), (139, 0)):
        other = replace(work(0, 500, 0), planned_ns=planned)
        assert chosen(make('deadline'), other, guest) == [first]


@pytest.mark.parametrize('name', list(POLICIES))
def test_with_nothing_ready_every_policy_waits_for_an_arrival(name: str) -> None:
    assert make(name).next_batch(0, ()) == WaitUntil(None)


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match='choose one of deadline, fifo'):
        policy('lifo')


def goodput(name: str, streams: int, periods: int = 40) -> float:
    """Share of the outputs of equal streams on two devices that are on time."""
    graph = StageGraph(steps=2, blocks=4)
    rule = BatchRule(8, across_steps=True)
    pool = []
    for number in range(streams):
        plan = Plan('pool', graph, ranks_from_devices([number % 2] * graph.stages), batch=rule,
                    max_in_flight=3, period_us=40_000)
        pool.append(Stream(plan, lambda block, batch: 800_000 + 200_000 * batch, chunks=periods,
                           open_ns=number * 40_000_000 // streams, deadline_ns=40_000_000))
    outcome = Twin(pool, make_dispatcher=policy(name)).run()
    on_time = sum(record.output_ns - record.planned_ns <= 40_000_000
                  for chunks in outcome.chunks for record in chunks
                  if record.output_ns is not None)
    return on_time / (streams * periods)


def test_batching_under_deadlines_keeps_more_streams_on_time_than_the_others() -> None:
    for streams in (8, 16, 24):
        best = goodput('deadline', streams)
        assert best >= max(goodput('fifo', streams), goodput('edf', streams),
                           goodput('always_batch', streams))
    assert goodput('deadline', 16) == 1.0
    assert goodput('fifo', 16) < 0.5


def outputs_and_lateness(promised: int, guests: int, periods: int = 60) -> tuple[int, int]:
    """Late outputs of streams with a promise, and all outputs of those that give way."""
    graph = StageGraph(steps=2, blocks=4)
    plan = Plan('pool', graph, ranks_from_devices([0] * graph.stages), max_in_flight=3,
                batch=BatchRule(8, across_steps=True), period_us=40_000,
                prediction=Prediction(0, 8 * 2400))
    pool = [Stream(plan, lambda block, batch: 800_000 + 200_000 * batch, chunks=periods,
                   open_ns=number * 40_000_000 // (promised + guests), deadline_ns=38_400_000,
                   yields=number >= promised) for number in range(promised + guests)]
    chunks = Twin(pool).run(until_ns=periods * 40_000_000).chunks
    late = sum(record.output_ns - record.planned_ns > 38_400_000
               for own in chunks[:promised] for record in own if record.output_ns is not None)
    return late, sum(record.output_ns is not None for own in chunks[promised:] for record in own)


def test_best_effort_streams_use_what_is_left_and_nobody_with_a_promise_is_late() -> None:
    """In small batches the promised ones alone would keep the device busy all the time."""
    late, outputs = outputs_and_lateness(6, 4)
    assert late == 0
    assert outputs > 0.9 * 4 * 60
    assert outputs_and_lateness(8, 24)[0] == 0
