"""Plans for one stream on G devices: the published modes and the best that are found.

Each plan that is found, rather than published, is executed by the simulator first, with the
engine's dispatch; those that miss their predicted period there are left out.

A second row of the same mode (`streamdiffusionv2#2`) is the same layout at a longer period, where a
chunk meets its batches sooner: its response is shorter.  `--mode` takes that name too.

Columns: `in_flight` is how many chunks may be under way at once, `weight_copies` how many blocks
all devices hold together, `bound_ratio` the period over the least that any plan could have, and
`on_front` whether no other plan is at least as good in both period and response.  `--json` has
`devices_used` (a plan never takes more devices than it has stages, or blocks, for) and `margin`
(what p99 times leave of the period that was asked for, as a share) as well.  `taken` marks the row
that `--out` and `--plot` take.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
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
    times_of,
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
                        help='which row --out and --plot take (the one with the shortest period; '
                             'for a robot limit the response with --max-response-ms)')
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
    found: dict[int, dict[str, Candidate]] = {}
    for count in device_counts:
        cluster = read_devices(args, count)
        found[count] = by_name(plan_single_stream(
            profile, cluster, slo, partial(confirmed, profile=profile, cluster=cluster)))
    name, chosen = choose(found[device_counts[-1]], args.mode)
    what = f'`{name}` on {chosen.plan.devices} device(s)'
    if args.out is not None:
        write_text(args.out, chosen.plan.to_json())
        print_written(args.out, f'plan {what}')
    if args.plot is not None:
        from physis_core.cli.plots.timetable import draw_timetable
        draw_timetable(chosen, args.plot)
        print_written(args.plot, f'timetable of {what}')
    if args.json:
        print_json({str(count): {'lower_bound_ms': lower_bound_us(profile, count) / 1e3,
                                 'front': rows(candidates, profile, count)}
                    for count, candidates in found.items()})
    else:
        taken = args.out is not None or args.plot is not None
        for count, candidates in found.items():
            marks = [('*' if one is chosen else '',) if taken else ()
                     for one in candidates.values()]
            print_table(f'{profile.model} on {count} device(s): no plan has a period below '
                        f'{lower_bound_us(profile, count) / 1e3:.4g} ms\n'
                        f'(predicted; {times_of(args, profile)})',
                        (*COLUMNS, *(('taken',) if taken else ())),
                        [[*(each[name] for name in COLUMNS), *mark]
                         for each, mark in zip(rows(candidates, profile, count), marks,
                                               strict=True)])
    return 0


def by_name(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    """Candidates by their mode; later ones of the same mode by `MODE#2` and so on."""
    named: dict[str, Candidate] = {}
    seen: Counter[str] = Counter()
    for candidate in candidates:
        mode = candidate.plan.mode
        seen[mode] += 1
        named[mode if seen[mode] == 1 else f'{mode}#{seen[mode]}'] = candidate
    return named


def confirmed(candidate: Candidate, profile: Profile, cluster: Cluster) -> Candidate | None:
    """The candidate with the response that the simulator saw; None if its period was longer."""
    seen = steady_state(candidate.plan, profile, cluster)
    if seen.period_us > TOLERANCE * candidate.table.period_us:
        return None
    prediction = replace(candidate.prediction, response_us=round(seen.response_us))
    return replace(candidate, plan=replace(candidate.plan, prediction=prediction))


def choose(candidates: Mapping[str, Candidate], mode: str | None) -> tuple[str, Candidate]:
    """The candidate of that name, or the one with the shortest period, and its name."""
    if mode is None:
        best = best_period(list(candidates.values()))
        return next((name, one) for name, one in candidates.items() if one is best)
    if mode not in candidates:
        raise InputError(f'mode `{mode}` is not among the plans found; choose one of '
                         f'{", ".join(candidates)}')
    return mode, candidates[mode]


def rows(candidates: Mapping[str, Candidate], profile: Profile, devices: int
         ) -> list[dict[str, Any]]:
    """All plans as the command reports them."""
    return [{**row(one, profile, devices), 'mode': name} for name, one in candidates.items()]


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
