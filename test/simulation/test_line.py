"""The line in closed form: equal to the event loop, and to the laws of pipelines."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.errors import InputError
from physis_core.graph import StageGraph
from physis_core.planning.modes import full_split
from physis_core.simulation.jitter import Jitter
from physis_core.simulation.line import barrier_departures_ns, line_flow, stage_times_ns
from physis_core.simulation.twin import Stream, Twin


def line(stages, chunks, jitter, slots=None, pace_ns=0, stage_ns=1_000_000):
    return line_flow(stage_times_ns(stages, stage_ns, chunks, jitter), slots, pace_ns)


def event_loop(stages, chunks, jitter, slots, pace_us, stage_ns):
    """The same line through the engine's dispatch."""
    plan = full_split(StageGraph(1, stages), stages)
    plan = type(plan)(plan.mode, plan.graph, plan.ranks, max_in_flight=chunks, period_us=pace_us)
    stream = Stream(plan, lambda block, batch: stage_ns, chunks=chunks)
    outcome = Twin([stream], jitter, slots=slots, keep_batches=True).run()
    entered = [batch.start_ns for batch in outcome.batches if batch.device == 0]
    return entered, outcome.outputs_ns(0)


@given(st.integers(1, 6), st.integers(1, 25), st.sampled_from([None, 0, 1, 2, 3]),
       st.sampled_from([0, 0, 90, 110, 300]), st.sampled_from(['lognormal', 'exp']),
       st.sampled_from([0.0, 0.05, 0.5]), st.integers(0, 1000))
def test_closed_form_is_the_event_loop_to_the_nanosecond(
        stages, chunks, slots, pace_us, kind, cv, seed):
    jitter = Jitter(cv, kind, seed)
    flow = line(stages, chunks, jitter, slots, 1000 * pace_us, stage_ns=100_000)
    entered, left = event_loop(stages, chunks, jitter, slots, pace_us, 100_000)
    assert flow.entered_ns.tolist() == entered
    assert flow.left_ns.tolist() == left


@pytest.mark.parametrize('stages, chunks', [(1, 1), (7, 1), (200, 1000)])
@pytest.mark.parametrize('slots', [None, 0, 1])
def test_law_1_finite_streams(stages, chunks, slots):
    flow = line(stages, chunks, Jitter(), slots)
    assert flow.left_ns[0] == stages * 1_000_000
    assert flow.left_ns[-1] == (chunks + stages - 1) * 1_000_000


def test_law_1_efficiency():
    left = line(200, 1000, Jitter()).left_ns
    assert 1000 * 1_000_000 / left[-1] == pytest.approx(0.834, abs=5e-4)


@pytest.mark.parametrize('slots, ratio', [(0, 3 / 2), (1, 4 / 3), (2, 5 / 4)])
def test_law_5_exponential_stages(slots, ratio):
    left = line(2, 40_000, Jitter(kind='exp'), slots).left_ns
    assert (left[-1] - left[0]) / (len(left) - 1) / 1e6 == pytest.approx(ratio, abs=0.02)


def test_law_5_jitter_with_one_slot():
    left = line(200, 4000, Jitter(0.05), 1).left_ns[1000:]
    assert np.diff(left).mean() / 1e6 == pytest.approx(1.0143, abs=0.002)


def test_law_5_without_slots():
    left = line(100, 4000, Jitter(0.05), 0).left_ns[1000:]
    assert np.diff(left).mean() / 1e6 == pytest.approx(1 + 1.33 * 0.05, abs=0.012)


def test_law_5_barrier():
    times = stage_times_ns(200, 1_000_000, 3000, Jitter(0.05))
    left = barrier_departures_ns(times, 200, 3000)
    assert np.diff(left[500:]).mean() / 1e6 == pytest.approx(1.146, abs=0.004)


def test_barrier_without_jitter_is_the_line():
    times = stage_times_ns(5, 1000, 9, Jitter())
    assert barrier_departures_ns(times, 5, 9).tolist() == line(
        5, 9, Jitter(), stage_ns=1000).left_ns.tolist()


def test_law_6_paced_source():
    stages, cv, pace = 100, 0.05, 1.02
    flow = line(stages, 6000, Jitter(cv), None, round(pace * 1e6))
    response = (flow.left_ns - np.arange(6000) * round(pace * 1e6))[2000:] / 1e6
    assert response.mean() == pytest.approx(stages * (1 + 0.75 * cv ** 2 / (pace - 1)), rel=0.02)
    assert np.quantile(response - response.mean(), 1 - 1e-3) <= 3.72 * cv * math.sqrt(stages)


def test_law_6_greedy_source_fills_the_queues():
    """With b slots, a chunk waits b more periods before each stage."""
    stages, slots = 40, 1
    flow = line(stages, 12_000, Jitter(0.3), slots)
    period = np.diff(flow.left_ns[8000:]).mean()
    response = (flow.left_ns - flow.entered_ns)[8000:].mean()
    paced = line(stages, 4000, Jitter(0.3), slots, round(1.3 * period))
    assert response > 1.5 * (paced.left_ns - paced.entered_ns)[2000:].mean()
    assert response < stages * (slots + 1) * period


def test_one_seed_one_result():
    runs = [line(5, 300, Jitter(0.2, seed=seed), 1).left_ns.tolist() for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_bad_distributions():
    with pytest.raises(InputError, match='distribution `normal` is not known'):
        Jitter(kind='normal')
    with pytest.raises(InputError, match='coefficient of variation -1'):
        Jitter(-1)
    with pytest.raises(InputError, match='-1 slots'):
        line(2, 2, Jitter(), -1)
