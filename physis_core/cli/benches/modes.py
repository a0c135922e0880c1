"""Every published mode and the best plan found, with real compute, against the oracle.

For each number of devices the stage times are measured first, with that many devices busy; the
search uses them.  Plans take turns, forwards and backwards, and the median of the turns counts.
Stage times are measured again after the turns, because a machine's speed drifts; the lower bound
is the median of those that follow from each measurement.  They are the times of devices that hold
all blocks, as in a profile; one that holds few runs them a little faster, because they stay in its
cache.  ``busiest_device`` is what that leaves out: the part of the period in which the busiest
device computes, where 1 would be an engine that takes no time at all.

``best`` is the fastest of all that were measured, ``planned`` what the search puts first before
anything of it has run.

``compute_scaling`` is what the machine itself gives: how much more independent streams, one on each
device and nothing between them, compute on the most devices than on the fewest.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from physis_core.cli.plan_runs import Run, measured_hop_us, measured_profile, run_plan
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models.registry import ModelSpec
from physis_core.planning.bound import lower_bound_us
from physis_core.planning.cluster import Link, bare_cluster
from physis_core.planning.modes import MODES, streamdiffusionv2
from physis_core.planning.plan import Plan
from physis_core.planning.profile import Profile
from physis_core.planning.single import plan_single_stream

_SEARCHED = 3
_RUN_S = 2.0
_CHUNKS = (6, 1000)
"""A run takes about so long; it has that many chunks at least, and at most."""
_TURNS = (5, 2)
_MANY_CHUNKS = 50
"""With fewer chunks in a run it is the second number of turns, and stage times are measured again
only after the last: all of it takes minutes as it is."""
_AGREE = 1.05
"""Where two turns differ by more than that, a third decides."""
_CHECK_S = (6.0, 1.0)
"""For so long the oracle follows a plan's first run, and the others."""
_PEER = 'streamdiffusionv2_peer'
_FAST_GB_S = 1e6  # the latency is measured with a hidden state in it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--model', default='so101', help='a registered model (so101)')
    for name in ('dim', 'blocks', 'steps', 'tokens', 'window'):
        parser.add_argument(f'--{name}', type=int, default=None, help=f'`{name}` of model `dit`')
    parser.add_argument('--devices', default='1,2', help='numbers of worker processes (1,2)')
    parser.add_argument('--chunks', type=int, default=None,
                        help=f'chunks of a run (what takes {_RUN_S:g} s, {_CHUNKS[0]} to '
                        f'{_CHUNKS[1]})')
    parser.add_argument('--turns', type=int, default=None,
                        help=f'runs of each plan ({_TURNS[0]}; with fewer than {_MANY_CHUNKS} '
                        f'chunks {_TURNS[1]}, and a third where those differ)')
    parser.add_argument('--peer', action='store_true',
                        help="add StreamDiffusionV2's schedule with its own message pattern")
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Measure and report."""
    spec = _spec(args)
    counts = [int(count) for count in args.devices.split(',')]
    if min(counts) < 1 or (args.chunks or _CHUNKS[0]) < _CHUNKS[0] or (args.turns or 1) < 1:
        raise InputError(f'--devices and --turns start at 1, --chunks at {_CHUNKS[0]}; give more')
    by_devices = {count: _on(count, spec, args) for count in counts}
    result: dict[str, Any] = {'model': spec.name, 'options': dict(spec.options)}
    result['devices'] = {str(count): rows for count, rows in by_devices.items()}
    few, many = by_devices[min(counts)], by_devices[max(counts)]
    if many is not few:
        result['unbatched_speedup'] = round(
            few['best_unbatched_ms'] / many['best_unbatched_ms'], 3)
        result['compute_scaling'] = round(max(counts) * few['stage_us_by_batch'][0]
                                          / min(counts) / many['stage_us_by_batch'][0], 3)
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
    profiles = [measured_profile(spec, devices)]
    profile = profiles[0]
    hop_us = measured_hop_us(spec, devices)
    plans, planned = _plans(profile, devices, hop_us)
    if args.peer and profile.graph.kv_mode is KVMode.SAME_STEP:
        plans[_PEER] = replace(streamdiffusionv2(profile.graph, devices), mode=_PEER,
                               link='gloo_pieces')
    chunks = args.chunks or _chunks(profile, devices)
    slow = chunks < _MANY_CHUNKS
    turns = args.turns or _TURNS[slow]
    runs: dict[str, list[Run]] = {name: [] for name in plans}
    schedule: list[str | None] = []
    for turn in range(turns):
        schedule += list(plans)[::(-1) ** turn]
        if not slow or turn == turns - 1:
            schedule.append(None)

    def turn_of(name: str) -> None:
        check_s = _CHECK_S[bool(runs[name])]
        runs[name].append(run_plan(spec, plans[name], chunks, check_s))

    for name in progress(schedule, f'{devices} devices', args.json):
        if name is None:
            profiles.append(measured_profile(spec, devices))
        else:
            turn_of(name)
    for name in plans:
        if len(runs[name]) == 2 and _differ(*runs[name]):
            turn_of(name)
    rows = {name: _row(turns) for name, turns in runs.items()}
    ours = {name: row['period_ms'] for name, row in rows.items() if name != _PEER}
    best = min(ours, key=lambda name: ours[name])
    bound_ms = float(np.median([lower_bound_us(one, devices) for one in profiles])) / 1000
    result = {'chunks': chunks, 'turns': turns, 'hop_us': round(hop_us, 1),
              'stage_us_by_batch': _stage_us(profiles),
              'block_us': [round(float(np.median([one.mean_us(block, one.max_batch)
                                                  for one in profiles])))
                           for block in range(profile.graph.blocks)],
              'lower_bound_ms': round(bound_ms, 4),
              'best': best, 'best_over_lower_bound': round(ours[best] / bound_ms, 4),
              'planned': planned, 'planned_over_lower_bound': round(ours[planned] / bound_ms, 4),
              'planned_over_best_named': round(
                  ours[planned] / min(ours[name] for name in MODES), 4),
              'best_unbatched_ms': min(period_ms for name, period_ms in ours.items()
                                       if plans[name].batch.max_batch == 1),
              'plans': rows}
    if _PEER in rows:
        peer_ms = rows[_PEER]['period_ms']
        result |= {'peer_interval_ms': peer_ms, 'ours_over_peer': round(ours[best] / peer_ms, 4)}
    return result


def _differ(one: Run, other: Run) -> bool:
    periods_ms = one.period_ms, other.period_ms
    return max(periods_ms) > _AGREE * min(periods_ms)


def _chunks(profile: Profile, devices: int) -> int:
    """Chunks that take about the time of a run, one after the other on all devices."""
    graph = profile.graph
    chunk_us = sum(profile.mean_us(block, 1) for block in range(graph.blocks)) * graph.passes
    low, high = _CHUNKS
    return int(min(max(_RUN_S * 1e6 * devices / chunk_us, low), high))


def _stage_us(profiles: list[Profile]) -> list[float]:
    """Mean time of a stage over the blocks, for batches of 1, 2, ... [us]."""
    blocks = range(profiles[0].graph.blocks)
    return [round(float(np.median([np.mean([one.mean_us(block, batch) for block in blocks])
                                   for one in profiles])), 1)
            for batch in range(1, profiles[0].max_batch + 1)]


def _plans(profile: Profile, devices: int, hop_us: float) -> tuple[dict[str, Plan], str]:
    """The named modes and the shortest periods of the search that are none of them, by name; and
    which of them the search puts first."""
    graph = profile.graph
    plans = {name: mode(graph, devices) for name, mode in MODES.items()}
    cluster = replace(bare_cluster(devices, 1000.0), fast=Link(_FAST_GB_S, hop_us))
    found = [one.plan for one in sorted(plan_single_stream(profile, cluster),
                                        key=lambda one: one.table.period_us)]
    unbatched = [plan for plan in found if plan.batch.max_batch == 1]
    names = {_what_runs(plan): name for name, plan in plans.items()}
    for plan in (*found[:_SEARCHED], *unbatched[:1]):
        name = names.setdefault(_what_runs(plan), f'search_{plan.mode}_{plan.max_in_flight}')
        plans.setdefault(name, plan)
    return plans, names[_what_runs(found[0])]


def _what_runs(plan: Plan) -> tuple[Any, ...]:
    """What tells a plan from another that runs the same."""
    return plan.ranks, plan.batch, plan.max_in_flight


def _row(turns: list[Run]) -> dict[str, float]:
    return {'period_ms': round(float(np.median([turn.period_ms for turn in turns])), 4),
            'response_ms': round(float(np.median([turn.response_ms for turn in turns])), 4),
            'max_abs_error': max(turn.max_abs_error for turn in turns),
            'checked_chunks': max(turn.checked_chunks for turn in turns),
            'mean_batch': round(float(np.mean([turn.mean_batch for turn in turns])), 2),
            'busiest_device': round(float(np.median([turn.busiest_device for turn in turns])), 3)}


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    for devices, found in result['devices'].items():
        rows = [[name, *row.values()] for name, row in found['plans'].items()]
        title = (f"{result['model']} on {devices} devices: lower bound "
                 f"{found['lower_bound_ms']:.4g} ms, best {found['best']} at "
                 f"{found['best_over_lower_bound']:.3g} of it")
        print_table(title, ['plan', *next(iter(found['plans'].values()))], rows)
