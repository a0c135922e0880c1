"""Period, response, age and devices of every plan worth having, in one table or picture.

The age of an action when it takes effect is at least the response; with observations every
`--sensor-ms`, a chunk waits half of that on average for its own, and half a period passes until the
mean point of its actions.  A model that binds observations late sees a newer one at every step.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from physis_core.cli.inputs import (
    add_device_arguments,
    add_model_arguments,
    add_slo_arguments,
    counts,
    positive_us,
    read_devices,
    read_profile,
    read_slo,
    semantics_of,
    times_of,
)
from physis_core.cli.plan import by_name, confirmed
from physis_core.cli.report import print_json, print_table, print_written
from physis_core.planning.profile import Profile
from physis_core.planning.single import Candidate, plan_single_stream

COLUMNS = ('devices', 'mode', 'period_ms', 'response_ms', 'age_ms', 'late_binding_age_ms',
           'frames_per_s', 'control_points_per_s')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model_arguments(parser)
    parser.add_argument('--devices', default='1,2,4,8,16', metavar='G,G,...',
                        help='device counts (1,2,4,8,16)')
    add_device_arguments(parser)
    add_slo_arguments(parser)
    parser.add_argument('--sensor-ms', type=float, default=33.3, metavar='MS',
                        help='interval between observations (33.3)')
    parser.add_argument('--plot', type=Path, default=None, metavar='FILE', help='draw the front')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Plan for each device count and keep what nothing beats in period, response and devices."""
    profile = read_profile(args)
    slo = read_slo(args, profile)
    sensor_us = positive_us(args.sensor_ms, '--sensor-ms')
    points: list[dict[str, Any]] = []
    for count in counts(args.devices, '--devices'):
        cluster = read_devices(args, count)
        found = by_name(plan_single_stream(
            profile, cluster, slo, partial(confirmed, profile=profile, cluster=cluster)))
        points += [{**point(one, profile, args.model, sensor_us), 'mode': name}
                   for name, one in found.items()]
    front = undominated(points)
    if args.plot is not None:
        from physis_core.cli.plots.pareto import draw_pareto
        draw_pareto(front, args.plot)
        print_written(args.plot, 'the front')
    if args.json:
        print_json({'model': args.model, 'front': front})
    else:
        # A model of frames makes no control points, and the other way round.
        columns = [name for name in COLUMNS if any(each[name] for each in front)]
        print_table(f'{args.model}: what nothing beats in period, response and devices\n'
                    f'(predicted, ages too; {times_of(args, profile)})', columns,
                    [[each[name] for name in columns] for each in front])
    return 0


def point(candidate: Candidate, profile: Profile, model: str, sensor_us: int) -> dict[str, Any]:
    """One plan as a point of the picture; mean age by the laws of late binding and waiting."""
    prediction, plan = candidate.prediction, candidate.plan
    semantics = semantics_of(model)
    period_s = prediction.period_us / 1e6
    waiting_us = (sensor_us + prediction.period_us) / 2
    steps = profile.graph.steps
    late_us = prediction.response_us * (steps + 1) / (2 * steps)
    return {
        'devices': plan.devices,
        'mode': plan.mode,
        'period_ms': prediction.period_us / 1e3,
        'response_ms': prediction.response_us / 1e3,
        'age_ms': (prediction.response_us + waiting_us) / 1e3,
        'late_binding_age_ms': (late_us + waiting_us) / 1e3,
        'chunks_per_s': 1 / period_s,
        'frames_per_s': semantics.frames_per_s(period_s),
        'control_points_per_s': semantics.control_points_per_s(period_s),
        'device_ms_per_chunk': plan.devices * prediction.period_us / 1e3,
    }


def undominated(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points that no other equals or beats in period, response and devices."""
    def costs(one: dict[str, Any]) -> tuple[int, float, float]:
        return one['devices'], one['period_ms'], one['response_ms']

    front: list[dict[str, Any]] = []
    for one in sorted(points, key=costs):
        if not any(all(a <= b for a, b in zip(costs(other), costs(one), strict=True))
                   for other in front):
            front.append(one)
    return front
