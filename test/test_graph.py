"""Stages, history and dependencies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.errors import InputError
from physis_core.graph import KVMode, StageGraph, Task

graphs = st.builds(
    StageGraph, st.integers(1, 4), st.integers(1, 4), st.sampled_from(list(KVMode)),
    window_chunks=st.integers(1, 5), sink_chunks=st.integers(0, 3))


def test_stages_are_steps_times_blocks_and_one_more_pass_for_clean_models() -> None:
    for mode, stages in ((KVMode.SAME_STEP, 12), (KVMode.CLEANER_NEIGHBOUR, 12),
                         (KVMode.CLEAN, 15)):
        graph = StageGraph(4, 3, mode, window_chunks=2)
        assert (graph.stages, graph.output_stage) == (stages, 11)
        assert [graph.stage(*graph.step_block(s)) for s in range(stages)] == list(range(stages))
    with pytest.raises(InputError, match='stages go from 0 to 14'):
        graph.step_block(15)


def test_the_kv_mode_says_whose_history_is_read() -> None:
    assert [StageGraph(3, 1, KVMode.SAME_STEP, 1).kv_source_step(d) for d in range(3)] == [0, 1, 2]
    assert [StageGraph(3, 1, KVMode.CLEANER_NEIGHBOUR, 1).kv_source_step(d)
            for d in range(3)] == [1, 2, 2]
    assert [StageGraph(3, 1, KVMode.CLEAN, 1).kv_source_step(d) for d in range(4)] == [3] * 4
    assert StageGraph(3, 1, KVMode.CLEANER_NEIGHBOUR, 1).kv_reader_steps(2) == (1, 2)
    assert StageGraph(3, 1, KVMode.SAME_STEP).kv_reader_steps(1) == ()


@given(graphs, st.integers(0, 40))
def test_history_is_the_sinks_and_the_window_each_in_its_own_slot(
        graph: StageGraph, chunk: int) -> None:
    history = graph.history(chunk)
    sinks = range(min(chunk, graph.sink_chunks))
    window = range(max(graph.sink_chunks, chunk - graph.window_chunks), chunk)
    assert sorted(history) == sorted({*sinks, *window})
    assert [graph.history_slot(earlier) for earlier in history] == list(range(len(history)))


@given(graphs, st.integers(0, 10**7))
def test_positions_stay_within_the_window_however_long_a_session_lasts(
        graph: StageGraph, chunk: int) -> None:
    own, *earlier = graph.positions(chunk)
    assert own <= graph.history_slots
    assert len({own, *earlier}) == 1 + len(earlier)
    assert all(0 <= position < own for position in earlier)


@given(graphs, st.integers(0, 6))
def test_dependencies_can_be_met_and_cover_the_history(graph: StageGraph, last: int) -> None:
    ended: set[Task] = set()
    for chunk in range(last + 1):  # chunk after chunk, stage after stage: always a legal order
        for stage in range(graph.stages):
            task = Task(chunk, *graph.step_block(stage))
            assert set(graph.dependencies(task)) <= ended
            if chunk:
                source = graph.kv_source_step(task.step)
                assert Task(chunk - 1, source, task.block) in ended
            ended.add(task)
            following = graph.next_task(task)
            assert following is None or graph.stage(following.step, following.block) == stage + 1


@pytest.mark.parametrize(('arguments', 'words'), [
    ((0, 1), 'steps is 0'), ((1, 0), 'blocks is 0'),
    ((1, 1, KVMode.CLEAN, -1), 'window_chunks is -1'),
    ((1, 1, KVMode.CLEAN, 0, 1), 'set window_chunks >= 1 or sink_chunks = 0'),
])
def test_a_graph_that_makes_no_sense_is_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        StageGraph(*arguments)
