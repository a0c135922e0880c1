"""How fast the planner is: one stream on 200 devices, and admissions on a pool of 64.

Times are processor times, so that a busy machine does not change them much.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from physis_core.cli.report import print_json, print_table
from physis_core.models.presets import load_preset
from physis_core.planning.admission import Admission, NoRoom
from physis_core.planning.bound import lower_bound_us
from physis_core.planning.cluster import uniform_cluster
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.single import best_period, plan_single_stream
from physis_core.planning.slo import SLO

MODELS = ('wan2.1-1.3b', 'wan2.2-5b', 'lingbot-va')
PERIODS_MS = (800, 1600)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--plan-devices', type=int, default=200, metavar='G',
                        help='devices to plan one H3 stream (200 stages) for (200)')
    parser.add_argument('--devices', type=int, default=64, metavar='G', help='of the pool (64)')
    parser.add_argument('--streams', type=int, default=200, metavar='N',
                        help='streams in the pool while admissions are timed (200)')
    parser.add_argument('--admissions', type=int, default=1000, metavar='N',
                        help='how many to time, each after a departure (1000)')
    parser.add_argument('--seed', type=int, default=0, help='of models, periods and departures (0)')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Measure both."""
    result = {**_plan_one(args.plan_devices), **_admit(args)}
    if args.json:
        print_json(result)
    else:
        print_table('planning', ('what', 'value'), list(result.items()))
    return 0


def _plan_one(devices: int) -> dict[str, float]:
    device = load_device('h100')
    profile = analytic_profile(load_preset('h3'), device, 8)
    started_s = time.process_time()
    plans = plan_single_stream(profile, uniform_cluster(devices, device))
    planning_s = time.process_time() - started_s
    best = best_period(plans)
    return {'plan_devices': devices, 'plan_stages': profile.graph.stages, 'plan_s': planning_s,
            'plan_period_over_bound':
                best.prediction.period_us / lower_bound_us(profile, devices)}


def _admit(args: argparse.Namespace) -> dict[str, float]:
    device = load_device('h100')
    profiles = [analytic_profile(load_preset(model), device, 8) for model in MODELS]
    admission = Admission(uniform_cluster(args.devices, device))
    random = np.random.default_rng(args.seed)
    admitted_ms: list[float] = []
    refused_ms: list[float] = []
    number = 0
    while len(admitted_ms) + len(refused_ms) < args.admissions:
        if len(admission.pool.placed) >= args.streams:
            admission.leave(sorted(admission.pool.placed)[random.integers(args.streams)])
        profile = profiles[random.integers(len(profiles))]
        slo = SLO(1000 * PERIODS_MS[random.integers(len(PERIODS_MS))])
        warm = len(admission.pool.placed) >= args.streams - 1 or bool(refused_ms)
        started_ns = time.thread_time_ns()
        try:
            admission.admit(f'stream-{number}', profile, slo)
            times = admitted_ms
        except NoRoom:
            times = refused_ms
            if admission.pool.placed:
                admission.leave(next(iter(admission.pool.placed)))
        if warm or times is refused_ms:
            times.append((time.thread_time_ns() - started_ns) / 1e6)
        number += 1
    every = admitted_ms + refused_ms
    return {'devices': args.devices, 'streams': len(admission.pool.placed),
            'admissions': len(every), 'refused': len(refused_ms),
            'admission_p50_ms': float(np.quantile(every, 0.5)),
            'admission_p99_ms': float(np.quantile(every, 0.99))}
