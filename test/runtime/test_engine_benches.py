"""The engine's benches end, report every key that others read, and say nothing impossible.

How fast anything is belongs to the benches themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from physis_core.cli import plan_runs
from physis_core.cli.benches import modes, soak
from physis_core.cli.footprint import Footprint
from physis_core.cli.main import main
from physis_core.cli.plan_runs import Run
from physis_core.planning.modes import MODES
from physis_core.planning.plan import Plan
from physis_core.planning.profile import BatchTimes, BlockGroup, Profile

Bench = Callable[..., dict[str, Any]]
TINY_DIT = ('--model', 'dit', '--dim', '32', '--blocks', '2', '--steps', '2', '--tokens', '4')
ROW = {'period_ms', 'response_ms', 'max_abs_error', 'checked_chunks', 'mean_batch',
       'busiest_device'}


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    def run(*arguments: str) -> dict[str, Any]:
        assert main(['bench', *arguments, '--json']) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return result
    return run


@pytest.mark.parametrize('options', [(), ('--cv', '0.05', '--slots', '1'), ('--synchronous',)])
def test_a_pipeline_is_no_faster_than_its_waits(bench: Bench, options: tuple[str, ...]) -> None:
    result = bench('pipeline', '--devices', '3', '--stages', '6', '--stage-ms', '2',
                   '--chunks', '60', *options)
    assert result['devices'] == 3
    assert result['period_over_ideal'] > 0.95 and result['simulated_period_ratio'] >= 0.95
    assert 0.99 < result['response_over_ideal'] <= result['response_p99_over_ideal']
    assert result['cpu_percent'] > 0


def test_a_pipeline_that_is_never_full_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['bench', 'pipeline', '--stages', '6', '--chunks', '6']) == 2
    assert '6 chunks for 6 stages never fill the pipeline' in capsys.readouterr().err


def test_every_mode_is_run_and_follows_the_oracle(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_runs, '_PROFILE_S', 0.1)
    result = bench('modes', *TINY_DIT, '--devices', '2', '--chunks', '6', '--turns', '1', '--peer')
    found = result['devices']['2']
    assert {*MODES, modes._PEER, found['best'], found['planned']} <= found['plans'].keys()
    for name, row in found['plans'].items():
        assert row.keys() == ROW
        assert row['checked_chunks'] >= 6 and 0 < row['busiest_device'] <= 1
        assert row['mean_batch'] >= 1
        # Without batches it is the oracle's own arithmetic; batches add in another order.
        alone = name in ('sequential', 'wave', 'full_split')
        assert row['max_abs_error'] == 0 if alone else row['max_abs_error'] < 1e-5
    ours = {name: row['period_ms'] for name, row in found['plans'].items() if name != modes._PEER}
    assert ours[found['best']] == min(ours.values())
    assert found['best_over_lower_bound'] == pytest.approx(
        ours[found['best']] / found['lower_bound_ms'], rel=0.01)
    assert found['ours_over_peer'] == pytest.approx(
        ours[found['best']] / found['plans'][modes._PEER]['period_ms'], rel=0.01)


class Machine:
    """Stands for the machine: every run of a plan takes what the test says."""

    def __init__(self, stage_us: int, period_ms: Callable[[str, int], float]) -> None:
        self.runs: list[str] = []
        self.profiles = 0
        self._stage_us = stage_us
        self._period_ms = period_ms

    def profile(self, spec: Any, devices: int) -> Profile:
        self.profiles += 1
        graph = plan_runs.describe(spec).graph
        times = tuple(self._stage_us * batch for batch in range(1, graph.passes + 1))
        groups = (BlockGroup(graph.blocks, BatchTimes(times, times, times)),)
        return Profile(spec.name, 'cpu', 'float32', 'measured', graph, 1, groups, 1)

    def run(self, spec: Any, plan: Plan, chunks: int, check_s: float) -> Run:
        turn = self.runs.count(plan.mode)
        self.runs.append(plan.mode)
        return Run(self._period_ms(plan.mode, turn), 1.0, 0.0, 3, 1.0, 1.0)


@pytest.fixture
def on_machine(bench: Bench, monkeypatch: pytest.MonkeyPatch
               ) -> Callable[..., tuple[Mapping[str, Any], Machine]]:
    def run(stage_us: int, period_ms: Callable[[str, int], float]
            ) -> tuple[Mapping[str, Any], Machine]:
        machine = Machine(stage_us, period_ms)
        monkeypatch.setattr(modes, 'measured_profile', machine.profile)
        monkeypatch.setattr(modes, 'measured_hop_us', lambda *_: 100.0)
        monkeypatch.setattr(modes, 'run_plan', machine.run)
        return bench('modes', *TINY_DIT, '--devices', '1')['devices']['1'], machine
    return run


def test_quick_plans_take_turns_both_ways_and_the_median_counts(
        on_machine: Callable[..., tuple[Mapping[str, Any], Machine]]) -> None:
    found, machine = on_machine(100, lambda mode, turn: (9.0, 2.0, 2.1, 50.0, 2.2)[turn])
    plans = len(found['plans'])
    first, second = machine.runs[:plans], machine.runs[plans:2 * plans]
    assert first == second[::-1] and len(machine.runs) == 5 * plans
    assert machine.profiles == 1 + 5
    assert {row['period_ms'] for row in found['plans'].values()} == {2.2}


def test_a_third_turn_decides_where_two_of_a_slow_plan_differ(
        on_machine: Callable[..., tuple[Mapping[str, Any], Machine]]) -> None:
    def period_ms(mode: str, turn: int) -> float:
        return (900.0, 600.0, 610.0)[turn] if mode == 'wave' else (800.0, 804.0)[turn]

    found, machine = on_machine(200_000, period_ms)
    assert found['plans']['wave']['period_ms'] == 610.0 and machine.runs.count('wave') == 3
    assert found['plans']['full_split']['period_ms'] == 802.0
    assert machine.runs.count('full_split') == 2
    assert machine.profiles == 2
    assert found['best'] == 'wave'


def test_streams_fill_what_one_clean_stream_leaves_idle(bench: Bench) -> None:
    result = bench('clean', '--devices', '2', '--streams', '1,4', '--seconds', '0.5',
                   '--steps', '1', '--blocks', '2', '--stage-ms', '2')
    one, four = result['counts']['1'], result['counts']['4']
    assert 0 < one['utilisation'] < four['utilisation'] <= 1
    assert one['utilisation'] <= one['ideal_utilisation'] + 0.05
    assert four['over_one_stream'] > 1


def test_endurance_bounds_positions(bench: Bench) -> None:
    result = bench('endurance', '--chunks', '1000')
    assert result['highest_position'] == result['positions_limit']


def test_churn_leaves_nothing_behind(bench: Bench) -> None:
    result = bench('churn', '--model', 'dit', '--stay', '1', '--guests', '1', '--opens', '4')
    assert result['opens'] == 4
    for held in ('processes', 'descriptors', 'shared_blocks', 'threads'):
        assert result[f'{held}_change'] == 0
    assert 0 <= result['on_time_during'][0] <= 1


def test_overload_sheds_at_the_entrance_and_ends(bench: Bench) -> None:
    result = bench('overload', '--seconds', '3')
    assert result['promised'] > 0 and result['shed_promised'] == 0
    assert result['in_flight_most'] <= result['in_flight_limit']
    assert 'no best-effort stream is admitted during an overload' in result['refusal_in_overload']
    assert result['admits_again']


def test_soak_counts_what_the_engine_holds(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, 'FLAT_MB_PER_HOUR', 1e6)  # seconds say nothing about hours
    result = bench('soak', '--minutes', '0.1', '--every', '0.5', '--streams', '2')
    assert result['chunks'] >= result['on_time'] > 0 and result['opens'] > 0
    assert result['processes_first'] == result['processes_last'] == 3


def seen(descriptors: list[int], processes: int = 3) -> list[Footprint]:
    return [Footprint(processes, 10**9, count, 36, 11) for count in descriptors]


def test_a_stream_that_has_just_left_is_no_leak() -> None:
    assert soak.judge(seen([89, 89, 88, 88, 88, 89, 88, 89]), 5.0)['flat']
    growing = soak.judge(seen([88, 88, 88, 88, 89, 89, 89, 90]), 5.0)
    assert not growing['flat']
    assert (growing['descriptors_first'], growing['descriptors_last']) == (88, 89)


def test_a_process_that_is_gone_and_memory_that_grows_are_told() -> None:
    assert not soak.judge(seen([88] * 4) + seen([88] * 4, processes=2), 5.0)['flat']
    filling = [Footprint(3, 10**9 + count * 10**6, 88, 36, 11) for count in range(60)]
    assert not soak.judge(filling, 5.0)['flat']
