"""Every published mode and the best plan found, with real compute, against the oracle.

For each number of devices the stage times are measured first, with that many devices busy; the
lower bound and the search use them.  Plans take turns, and the median of the turns counts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from physis_core.cli.plan_runs import Run, measured_profile, run_plan
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models.registry import ModelSpec
from physis_core.planning.bound import lower_bound_us
from physis_core.planning.cluster import bare_cluster
from physis_core.planning.modes import MODES, streamdiffusionv2
from physis_core.planning.plan import Plan
from physis_core.planning.profile import Profile
from physis_core.planning.single import plan_single_stream

_SEARCHED = 3
_PEER = 'streamdiffusionv2_peer'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--model', default='so101', help='a registered model (so101)')
    for name in ('dim', 'blocks', 'steps', 'tokens', 'window'):
        parser.add_argument(f'--{name}', type=int, default=None, help=f'`{name}` of model `dit`')
    parser.add_argument('--devices', default='1,2', help='numbers of worker processes (1,2)')
    parser.add_argument('--chunks', type=int, default=100, help='chunks of a run')
    parser.add_argument('--turns', type=int, default=3, help='runs of each plan')
    parser.add_argument('--peer', action='store_true',
                        help="add StreamDiffusionV2's schedule with its own message pattern")
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Measure and report."""
    spec = _spec(args)
    counts = [int(count) for count in args.devices.split(',')]
    if min(counts) < 1 or args.chunks < 10 or args.turns < 1:
        raise InputError('--devices and --turns start at 1, --chunks at 10; give more')
    by_devices = {count: _on(count, spec, args) for count in counts}
    result: dict[str, Any] = {'model': spec.name, 'options': dict(spec.options),
                              'chunks': args.chunks, 'turns': args.turns}
    result['devices'] = {str(count): rows for count, rows in by_devices.items()}
    if len(counts) > 1:
        few, many = (by_devices[count]['plans']['full_split']['period_ms']
                     for count in (min(counts), max(counts)))
        result['unbatched_speedup'] = round(few / many, 3)
    _report(result, args.json)
    return 0


def _spec(args: argparse.Namespace) -> ModelSpec:
    given = {name: getattr(args, name) for name in ('dim', 'blocks', 'steps', 'tokens', 'window')
             if getattr(args, name) is not None}
    if given and args.model != 'dit':
        raise InputError(f'--{next(iter(given))} is an option of model `dit`, not of '
                         f'`{args.model}`; leave it out')
    return ModelSpec(args.model, given)


def _on(devices: int, spec: ModelSpec, args: argparse.Namespace) -> dict[str, Any]:
    """All plans on so many devices: rows by name, and what follows from the stage times."""
    profile = measured_profile(spec, devices, args.chunks)
    plans = _plans(profile, devices, args.peer)
    runs: dict[str, list[Run]] = {name: [] for name in plans}
    for name in progress([name for _ in range(args.turns) for name in plans],
                         f'{devices} devices', args.json):
        runs[name].append(run_plan(spec, plans[name], args.chunks))
    rows = {name: _row(turns) for name, turns in runs.items()}
    best = min((name for name in rows if name != _PEER), key=lambda name: rows[name]['period_ms'])
    bound_ms = lower_bound_us(profile, devices) / 1000
    times = profile.groups[0].times
    return {'stage_us_by_batch': list(times.mean_us), 'lower_bound_ms': round(bound_ms, 4),
            'best': best, 'best_over_lower_bound': round(rows[best]['period_ms'] / bound_ms, 4),
            'plans': rows}


def _plans(profile: Profile, devices: int, peer: bool) -> dict[str, Plan]:
    """The named modes, and the shortest periods of the search that are none of them."""
    graph = profile.graph
    plans = {name: mode(graph, devices) for name, mode in MODES.items()}
    placements = {(plan.ranks, plan.batch) for plan in plans.values()}
    found = sorted(plan_single_stream(profile, bare_cluster(devices, 1000.0)),
                   key=lambda candidate: candidate.table.period_us)
    for candidate in found:
        plan = candidate.plan
        known = (plan.ranks, plan.batch) in placements
        if len(plans) < len(MODES) + _SEARCHED and not known:
            placements.add((plan.ranks, plan.batch))
            plans[f'search_{plan.mode}'] = plan
    if peer and graph.kv_mode is KVMode.SAME_STEP:
        plans[_PEER] = replace(streamdiffusionv2(graph, devices), mode=_PEER, link='gloo_pieces')
    return plans


def _row(turns: list[Run]) -> dict[str, float]:
    return {'period_ms': round(float(np.median([turn.period_ms for turn in turns])), 4),
            'response_ms': round(float(np.median([turn.response_ms for turn in turns])), 4),
            'max_abs_error': max(turn.max_abs_error for turn in turns),
            'mean_batch': round(float(np.mean([turn.mean_batch for turn in turns])), 2)}


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    for devices, found in result['devices'].items():
        rows = [[name, *row.values()] for name, row in found['plans'].items()]
        title = (f"{result['model']} on {devices} devices: lower bound "
                 f"{found['lower_bound_ms']:.4g} ms, best {found['best']} at "
                 f"{found['best_over_lower_bound']:.3g} of it")
        print_table(title, ['plan', 'period_ms', 'response_ms', 'max_abs_error', 'mean_batch'],
                    rows)
