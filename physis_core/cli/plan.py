"""Plans for one stream on G devices: the published modes and the best that are found.

Each plan that is found, rather than published, is executed by the simulator first, with the
engine's dispatch; those that miss their predicted period there are left out.

Columns: `in_flight` is how many chunks may be under way at once, `weight_copies` how many blocks
all devices hold together, `bound_ratio` the period over the least that any plan could have, and
`on_front` whether no other plan is at least as good in both period and response.  `--json` has
`devices_used` (a plan never takes more devices than it has stages, or blocks, for) and `margin`
(what p99 times leave of the period that was asked for, as a share) as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from physis_core.cli.inputs import (
    add_device_arguments,
    add_model_arguments,
    add_slo_arguments,
    counts,
    read_devices,
    read_profile,
    read_slo,
)
from physis_core.cli.report import check_place, print_json, print_table, print_written, write_text
from physis_core.errors import InputError
from physis_core.planning.bound import lower_bound_us
from physis_core.planning.cluster import GB, Cluster
from physis_core.planning.profile import Profile
from physis_core.planning.single import Candidate, best_period, plan_single_stream
from physis_core.simulation.steady import steady_state

TOLERANCE = 1.01
COLUMNS = ('mode', 'period_ms', 'response_ms', 'batch', 'weight_copies', 'in_flight',
           'device_gb', 'bound_ratio', 'on_front')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model_arguments(parser)
    parser.add_argument('--devices', default='1,2,4,8', metavar='G,G,...',
                        help='device counts (1,2,4,8)')
    add_device_arguments(parser)
    add_slo_arguments(parser)
    parser.add_argument('--mode', default=None,
                        help='which plan --out and --plot take (the one with the shortest period)')
    parser.add_argument('--out', type=Path, default=None, metavar='FILE',
                        help='write that plan, for the last device count, as JSON')
    parser.add_argument('--plot', type=Path, default=None, metavar='FILE',
                        help='draw its timetable')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Plan for each device count."""
    check_place(args.out)
    check_place(args.plot)
    profile = read_profile(args)
    slo = read_slo(args, profile)
    device_counts = counts(args.devices, '--devices')
    found: dict[int, list[Candidate]] = {}
    for count in device_counts:
        cluster = read_devices(args, count)
        found[count] = plan_single_stream(
            profile, cluster, slo, partial(confirmed, profile=profile, cluster=cluster))
    chosen = choose(found[device_counts[-1]], args.mode)
    if args.out is not None:
        write_text(args.out, chosen.plan.to_json())
        print_written(args.out, f'plan {_label(chosen)}')
    if args.plot is not None:
        from physis_core.cli.plots.timetable import draw_timetable
        draw_timetable(chosen, args.plot)
        print_written(args.plot, f'timetable of {_label(chosen)}')
    if args.json:
        print_json({str(count): {'lower_bound_ms': lower_bound_us(profile, count) / 1e3,
                                 'front': [row(one, profile, count) for one in candidates]}
                    for count, candidates in found.items()})
    else:
        for count, candidates in found.items():
            rows = [row(one, profile, count) for one in candidates]
            print_table(f'{profile.model} on {count} device(s): no plan has a period below '
                        f'{lower_bound_us(profile, count) / 1e3:.4g} ms', COLUMNS,
                        [[each[name] for name in COLUMNS] for each in rows])
    return 0


def confirmed(candidate: Candidate, profile: Profile, cluster: Cluster) -> Candidate | None:
    """The candidate with the response that the simulator saw; None if its period was longer."""
    seen = steady_state(candidate.plan, profile, cluster)
    if seen.period_us > TOLERANCE * candidate.table.period_us:
        return None
    prediction = replace(candidate.prediction, response_us=round(seen.response_us))
    return replace(candidate, plan=replace(candidate.plan, prediction=prediction))


def choose(candidates: Sequence[Candidate], mode: str | None) -> Candidate:
    """The candidate of that mode, or the one with the shortest period."""
    if mode is None:
        return best_period(candidates)
    named = [candidate for candidate in candidates if candidate.plan.mode == mode]
    if not named:
        known = ', '.join(dict.fromkeys(candidate.plan.mode for candidate in candidates))
        raise InputError(f'mode `{mode}` is not among the plans found; choose one of {known}')
    return named[0]


def _label(candidate: Candidate) -> str:
    return f'`{candidate.plan.mode}` on {candidate.plan.devices} device(s)'


def row(candidate: Candidate, profile: Profile, devices: int) -> dict[str, Any]:
    """One plan as the command reports it."""
    plan, prediction = candidate.plan, candidate.prediction
    return {
        'mode': plan.mode,
        'period_ms': prediction.period_us / 1e3,
        'response_ms': prediction.response_us / 1e3,
        'batch': candidate.batch,
        'weight_copies': plan.weight_copies(),
        'devices_used': plan.devices,
        'in_flight': plan.max_in_flight,
        'device_gb': max(prediction.device_bytes) / GB,
        'bound_ratio': prediction.period_us / lower_bound_us(profile, devices),
        'margin': prediction.margin,
        'on_front': candidate.on_front,
    }
