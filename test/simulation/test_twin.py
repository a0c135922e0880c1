"""The event loop: the engine's dispatch under a virtual clock."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.errors import InputError, PlanError
from physis_core.graph import KVMode, StageGraph, Task
from physis_core.planning.modes import full_split, sequential, streamdiffusionv2, wave
from physis_core.planning.plan import BatchRule, Plan, Prediction, ranks_from_devices
from physis_core.simulation.jitter import Jitter
from physis_core.simulation.twin import Stall, Stream, Twin

MS = 1_000_000


def affine(block, batch):
    """t(B) = 1 + B ms."""
    return (1 + batch) * MS


def run(plan, chunks=60, **options):
    return Twin([Stream(plan, affine, chunks=chunks)], keep_batches=True, **options).run()


@st.composite
def any_plan(draw):
    mode = draw(st.sampled_from(list(KVMode)))
    graph = StageGraph(draw(st.integers(1, 3)), draw(st.integers(1, 4)), mode, window_chunks=2)
    device_of = draw(st.lists(st.integers(0, 3), min_size=graph.stages, max_size=graph.stages))
    return Plan('any', graph, ranks_from_devices(device_of),
                batch=BatchRule(draw(st.integers(1, 4)), across_steps=draw(st.booleans())),
                max_in_flight=draw(st.integers(1, 8)), period_us=draw(st.sampled_from([0, 2500])))


@given(any_plan(), st.integers(0, 20))
def test_every_task_runs_once_after_what_it_depends_on(plan, seed):
    outcome = run(plan, 8, jitter=Jitter(0.3, seed=seed))
    ends, starts = {}, {}
    for batch in outcome.batches:
        assert len({block for _, _, _, block in batch.members}) == 1
        assert len(batch.members) <= plan.batch.max_batch
        for _, chunk, step, block in batch.members:
            assert plan.device_of(plan.graph.stage(step, block)) == batch.device
            starts[Task(chunk, step, block)] = batch.start_ns
            assert ends.setdefault(Task(chunk, step, block), batch.end_ns) == batch.end_ns
    assert len(ends) == 8 * plan.graph.stages
    for task, start in starts.items():
        for needed in plan.graph.dependencies(task):
            assert ends[needed] <= start
    for device in range(plan.devices):
        here = sorted((batch.start_ns, batch.end_ns) for batch in outcome.batches
                      if batch.device == device)
        assert all(end <= start for (_, end), (start, _) in pairwise(here))
    assert len(outcome.outputs_ns(0)) == 8


def test_law_3_periods_of_the_modes():
    graph = StageGraph(4, 6)
    for plan, period_ms in ((sequential(graph), 24 * 2), (wave(graph, 4), 6 * 2),
                            (full_split(graph, 24), 2), (streamdiffusionv2(graph, 6), 5)):
        outcome = run(plan, 200)
        outputs = outcome.outputs_ns(0)
        middle, last = 100, 200 - plan.max_in_flight - 1
        assert (outputs[last] - outputs[middle]) / (last - middle) == pytest.approx(
            period_ms * MS, rel=0.01), plan.mode


@pytest.mark.parametrize('seed', range(3))
def test_chunks_that_share_batches_stay_together_when_let_in_as_fast_as_it_goes(seed):
    """By slack, which the prediction gives, the batches would have 3.4 members."""
    graph = StageGraph(4, 8)
    plan = Plan('waves', graph, ranks_from_devices([0, 1, 1, 1, 1, 1, 1, 0] * 4),
                batch=BatchRule(4, across_steps=True, wait_us=5000), max_in_flight=13,
                prediction=Prediction(period_us=2200, response_us=26_400))

    def uneven(block, batch):
        return (300 + 330 * batch if block == 0 else 130 + 50 * batch) * 1000

    outcome = Twin([Stream(plan, uneven, chunks=1000)], jitter=Jitter(0.15, seed=seed)).run()
    assert outcome.task_count / outcome.batch_count > 3.8


@pytest.mark.parametrize('mode, plan, period_ms', [
    (KVMode.CLEANER_NEIGHBOUR, wave, 2 * (5 + 1)), (KVMode.CLEAN, full_split, 2 * (3 * 5 + 1))])
def test_history_sets_the_period_of_one_stream(mode, plan, period_ms):
    graph = StageGraph(3, 5, mode, window_chunks=2)
    outcome = run(plan(graph, graph.stages))
    assert outcome.mean_period_ns(0, 20) == period_ms * MS


def test_many_streams_fill_what_one_of_a_clean_model_cannot():
    graph = StageGraph(3, 5, KVMode.CLEAN, window_chunks=2)
    plan = replace(full_split(graph, graph.stages), max_in_flight=1)
    busy = []
    for count in (1, 4, 10):
        outcome = Twin([Stream(plan, affine, chunks=20, open_ns=7 * number * MS)
                        for number in range(count)]).run()
        busy.append(sum(outcome.busy_ns) / outcome.end_ns / plan.devices)
    assert busy[1] > 3 * busy[0] and busy[2] > 2 * busy[1]


def test_law_7_chunks_in_flight_are_response_over_period():
    plan = replace(full_split(StageGraph(2, 5), 10), period_us=2500, max_in_flight=50)
    outcome = run(plan, 400)
    records = outcome.chunks[0]
    response = sum(record.response_ns for record in records) / len(records)
    in_flight = sum(record.output_ns - record.entered_ns for record in records) / (
        records[-1].entered_ns - records[0].entered_ns)
    assert in_flight == pytest.approx(response / (2500 * 1000), rel=0.01)


def test_at_most_max_in_flight():
    plan = replace(full_split(StageGraph(2, 5), 10), max_in_flight=3)
    records = run(plan, 50).chunks[0]
    for record in records[3:]:
        assert record.entered_ns >= records[record.chunk - 3].output_ns


def test_one_seed_one_result():
    plan = streamdiffusionv2(StageGraph(4, 6), 3)
    batches = [run(plan, jitter=Jitter(0.2, seed=seed)).batches for seed in (5, 5, 6)]
    assert batches[0] == batches[1] != batches[2]


def test_models_do_not_share_batches():
    graph = StageGraph(1, 3)
    plan = replace(sequential(graph), batch=BatchRule(4))
    streams = [Stream(plan, affine, model=model, chunks=10) for model in ('a', 'b', 'a', 'b')]
    outcome = Twin(streams, keep_batches=True).run()
    seen = {tuple(sorted({stream % 2 for stream, _, _, _ in batch.members}))
            for batch in outcome.batches}
    assert seen == {(0,), (1,)}
    assert outcome.task_count == 2 * outcome.batch_count


def test_a_closed_stream_frees_its_place():
    plan = replace(sequential(StageGraph(1, 3)), period_us=12_000)
    outcome = Twin([Stream(plan, affine, chunks=20),
                    Stream(plan, affine, close_ns=61 * MS, chunks=20)]).run()
    assert len(outcome.outputs_ns(0)) == 20
    assert len(outcome.outputs_ns(1)) == 5
    late = [record for record in outcome.chunks[0] if record.planned_ns > 70 * MS]
    assert all(record.response_ns == 6 * MS for record in late)


def test_a_stall_delays_what_comes_after_it():
    plan = replace(sequential(StageGraph(1, 3)), period_us=10_000, max_in_flight=4)
    outcome = run(plan, 10, stalls=[Stall(0, 31 * MS, 20 * MS)])
    responses = [record.response_ns // MS for record in outcome.chunks[0]]
    assert responses[:3] == [6, 6, 6]
    assert responses[3] == 6 + 51 - 32
    assert responses[-1] == 6


def test_hops_add_to_the_response_not_to_the_period():
    plan = replace(full_split(StageGraph(1, 4), 4), period_us=2000, max_in_flight=20)
    stream = Stream(plan, affine, hop_ns=lambda sender, receiver: 5 * MS, chunks=40)
    outcome = Twin([stream]).run()
    assert outcome.chunks[0][-1].response_ns == 4 * 2 * MS + 3 * 5 * MS
    assert outcome.mean_period_ns(0, 5) == 2 * MS


def test_deadlines_order_streams():
    """The stream that is due first goes first, whoever came first."""
    plan = sequential(StageGraph(1, 2))
    patient = Stream(plan, affine, chunks=1, deadline_ns=100 * MS, model='a')
    urgent = Stream(plan, affine, chunks=1, open_ns=MS, deadline_ns=10 * MS, model='b')
    outcome = Twin([patient, urgent]).run()
    assert outcome.outputs_ns(1)[0] == 6 * MS
    assert outcome.outputs_ns(0)[0] == 8 * MS


def test_what_cannot_be_simulated():
    plan = sequential(StageGraph(1, 2))
    other = replace(plan, batch=BatchRule(4))
    with pytest.raises(InputError, match='0 streams'):
        Twin([])
    with pytest.raises(InputError, match='2 batch rules'):
        Twin([Stream(plan, affine), Stream(other, affine)])
    orders = [replace(plan, order=(order,)) for order in ((0, 1), (1, 0))]
    with pytest.raises(PlanError, match=r'plan of slot 1 serves .* device 0 in the order'):
        Twin([Stream(one, affine) for one in orders])
    with pytest.raises(InputError, match='blocking slots are simulated for one stream'):
        Twin([Stream(plan, affine)], slots=1)
    with pytest.raises(InputError, match='0 outputs after a warm-up of 5'):
        run(plan, 2).mean_period_ns(0, 5)
