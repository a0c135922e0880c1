"""Which tasks may start, and which of them does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.errors import OrderViolation
from physis_core.graph import KVMode, StageGraph, Task
from physis_core.planning.plan import BatchRule
from physis_core.runtime.dispatch import Batch, ReadyQueue, SlackDispatcher, WaitUntil, Work

MS = 1_000_000


def work(chunk: int, step: int = 0, block: int = 0, stream: int = 0, deadline_ms: float = 100,
         arrived_ns: int = 0, remaining_ns: int = 0) -> Work:
    return Work(stream, 1, Task(chunk, step, block), round(deadline_ms * MS), remaining_ns,
                arrived_ns)


def opened(graph: StageGraph, streams: int = 1) -> ReadyQueue:
    queue = ReadyQueue()
    for stream in range(streams):
        queue.open(stream, 1, graph)
    return queue


def ready(queue: ReadyQueue) -> list[Task]:
    return [one.task for one in queue.ready]


# -- ReadyQueue --------------------------------------------------------------------------------


def test_a_chunk_waits_for_the_one_before_it_at_its_stage() -> None:
    queue = opened(StageGraph(1, 1))
    first, second = work(0), work(1)
    queue.arrive(first)
    queue.arrive(second)
    assert ready(queue) == [first.task]
    assert queue.waiting == 1
    queue.start([first])
    assert ready(queue) == []
    queue.end(first)
    assert ready(queue) == [second.task]


@pytest.mark.parametrize('chunk', [1, 5])
def test_the_first_chunk_to_arrive_is_chunk_0(chunk: int) -> None:
    with pytest.raises(OrderViolation, match=f'chunk {chunk} arrived at step 0 block 0 after'):
        opened(StageGraph(1, 1)).arrive(work(chunk))


def test_a_repeated_chunk_and_an_end_out_of_order_are_violations() -> None:
    queue = opened(StageGraph(1, 1))
    queue.arrive(work(0))
    with pytest.raises(OrderViolation, match='lost, repeated or overtaken'):
        queue.arrive(work(0))
    with pytest.raises(OrderViolation, match='chunk 1 ended at step 0 block 0 after chunk -1'):
        queue.end(work(1))


def test_a_cleaner_neighbour_waits_for_the_step_after_it() -> None:
    queue = opened(StageGraph(2, 1, KVMode.CLEANER_NEIGHBOUR, window_chunks=2))
    noisy, clean = work(0, 0), work(0, 1)
    queue.arrive(noisy)
    queue.start([noisy])
    queue.end(noisy)
    queue.arrive(clean)
    queue.arrive(work(1, 0))
    assert ready(queue) == [clean.task]  # chunk 1 at step 0 reads chunk 0 at step 1
    queue.start([clean])
    queue.end(clean)
    assert ready(queue) == [Task(1, 0, 0)]


def test_kv_of_another_device_makes_its_readers_ready_in_order() -> None:
    queue = opened(StageGraph(2, 1, KVMode.CLEAN, window_chunks=2))
    first = work(0, 0)
    queue.arrive(first)
    queue.start([first])
    queue.end(first)
    queue.arrive(work(1, 0))
    assert ready(queue) == []
    queue.kv_arrived(0, Task(0, 2, 0))
    assert ready(queue) == [Task(1, 0, 0)]
    with pytest.raises(OrderViolation, match='chunk 2 was written at step 2 block 0 after'):
        queue.kv_arrived(0, Task(2, 2, 0))


def test_closing_a_stream_drops_its_work_and_no_other() -> None:
    queue = opened(StageGraph(1, 1), streams=2)
    for stream in (0, 1):
        queue.arrive(work(0, stream=stream))
        queue.arrive(work(1, stream=stream))
    assert sorted(one.task.chunk for one in queue.close(0)) == [0, 1]
    assert queue.epoch(0) is None
    assert ([one.stream for one in queue.ready], queue.waiting) == ([1], 1)
    queue.open(0, 2, StageGraph(1, 1))
    queue.arrive(work(0))  # chunks start at 0 again
    assert queue.epoch(0) == 2


@given(st.sampled_from(list(KVMode)), st.integers(0, 2**32))
def test_whatever_is_served_first_tasks_start_after_what_they_depend_on(
        mode: KVMode, seed: int) -> None:
    graph = StageGraph(2, 2, mode, window_chunks=2)
    queue = opened(graph)
    ended: set[Task] = set()
    for chunk in range(4):
        queue.arrive(work(chunk))
    while queue.ready:
        taken = sorted(queue.ready, key=lambda one: one.task)[seed % len(queue.ready)]
        seed = seed * 6364136223846793005 % 2**64 + 1
        assert set(graph.dependencies(taken.task)) <= ended
        queue.start([taken])
        ended.add(taken.task)
        queue.end(taken)
        following = graph.next_task(taken.task)
        if following is not None:
            queue.arrive(work(following.chunk, following.step, following.block))
    assert len(ended) == 4 * graph.stages  # nothing is stuck


# -- SlackDispatcher ---------------------------------------------------------------------------


def chosen(rule: BatchRule, works: list[Work], now_ns: int = 0, each_ms: float = 1.0,
           order: tuple[tuple[int, int], ...] = ()) -> list[Task] | int | None:
    """The tasks of the next batch, or until when it waits."""
    dispatcher = SlackDispatcher(rule, lambda block, batch: round(batch * each_ms * MS), order)
    decision = dispatcher.next_batch(now_ns, works)
    if isinstance(decision, WaitUntil):
        return decision.ns
    assert isinstance(decision, Batch)
    return [member.task for member in decision.members]


def test_the_least_slack_goes_first() -> None:
    late, soon = work(0, deadline_ms=50), work(0, stream=1, deadline_ms=20)
    assert chosen(BatchRule(), [late, soon]) == [soon.task]
    close = work(0, stream=2, deadline_ms=60, remaining_ns=45 * MS)  # latest end at 15 ms
    assert chosen(BatchRule(), [late, soon, close]) == [close.task]


def test_equals_go_by_the_order_of_the_plan_or_furthest_first() -> None:
    works = [work(1, 0, 0), work(0, 1, 1), work(0, 1, 0)]
    assert chosen(BatchRule(), works) == [Task(0, 1, 1)]
    assert chosen(BatchRule(), works, order=((0, 0), (1, 0), (1, 1))) == [Task(1, 0, 0)]


def test_nothing_to_do_is_waiting_for_news() -> None:
    assert chosen(BatchRule(), []) is None


def test_a_batch_holds_one_block_and_follows_its_rule() -> None:
    works = [work(2, 0, 0), work(1, 1, 0), work(0, 1, 1), work(5, 1, 0, stream=1)]
    alone = chosen(BatchRule(4), works)
    assert alone == [Task(0, 1, 1)]
    del works[2]
    assert chosen(BatchRule(4), works) == [Task(1, 1, 0), Task(5, 1, 0)]
    assert chosen(BatchRule(4, across_streams=False), works) == [Task(1, 1, 0)]
    assert sorted(chosen(BatchRule(4, across_steps=True), works)) == [
        Task(1, 1, 0), Task(2, 0, 0), Task(5, 1, 0)]
    assert chosen(BatchRule(2, across_steps=True), works) == [Task(1, 1, 0), Task(5, 1, 0)]


def test_a_batch_never_makes_its_tightest_member_late() -> None:
    works = [work(0, stream=stream, deadline_ms=10 + stream) for stream in range(4)]
    assert len(chosen(BatchRule(8), works, each_ms=5.0)) == 2  # three take 15 ms
    assert len(chosen(BatchRule(8), works, each_ms=2.0)) == 4


def test_who_is_late_anyway_takes_everyone_along() -> None:
    works = [work(0, stream=stream, deadline_ms=1) for stream in range(4)]
    assert len(chosen(BatchRule(8), works, each_ms=5.0)) == 4


def test_who_enters_waits_for_company_but_not_past_its_slack() -> None:
    rule = BatchRule(4, wait_us=3000)
    alone = work(0, arrived_ns=0)
    assert chosen(rule, [alone]) == 3 * MS
    assert chosen(rule, [alone], now_ns=3 * MS) == [alone.task]
    tight = work(0, deadline_ms=4)
    assert chosen(rule, [tight]) == 2 * MS  # two together take 2 ms and are due at 4 ms
    full = [work(0, stream=stream) for stream in range(4)]
    assert len(chosen(rule, full)) == 4


def test_who_is_under_way_does_not_wait_and_others_run_meanwhile() -> None:
    rule = BatchRule(4, wait_us=3000)
    assert chosen(rule, [work(0, 1, 0)]) == [Task(0, 1, 0)]
    assert chosen(rule, [work(1, 0, 0), work(0, 0, 1, deadline_ms=500)]) == [Task(0, 0, 1)]
