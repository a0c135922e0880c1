"""A long run of mixed load: memory, descriptors and processes stay flat, or it fails.

Some streams stay, others come and go, some are reset; every few seconds everything that the
engine's processes hold is counted.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from physis_core.cli.benches.streams import provision, whole_plans
from physis_core.cli.footprint import Footprint, footprint
from physis_core.cli.inputs import add_engine_bench_arguments, positive_us
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.cli.traffic import Rider, any_observation, leave, ride
from physis_core.errors import InputError, StreamError
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.plan import BatchRule
from physis_core.runtime.engine import Engine, StreamOptions

_MB = 1e6
LONG = True
"""Too long for `physis bench all`."""

FLAT_MB_PER_HOUR = 16.0
_REST_S = 0.2
"""Before a count: what a stream that has just left still holds is let go meanwhile."""
_COUNTED = ('processes', 'descriptors', 'shared_blocks', 'threads')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_engine_bench_arguments(parser, slo_ms=100.0)
    parser.add_argument('--minutes', type=float, default=30.0, help='how long (30)')
    parser.add_argument('--streams', type=int, default=6, metavar='N',
                        help='streams at a time; half of them come and go (6)')
    parser.add_argument('--every', type=float, default=5.0, metavar='S',
                        help='seconds between two counts (5)')
    parser.add_argument('--seed', type=int, default=0, help='of who comes and goes when')


def run(args: argparse.Namespace) -> int:
    """Run the load; 1 if something grew."""
    if args.streams < 2 or not args.minutes > 0 or not args.every > 0:
        raise InputError(f'--streams {args.streams}, --minutes {args.minutes:g} and --every '
                         f'{args.every:g}: at least 2 streams, and times above 0')
    result = soak(args)
    if args.json:
        print_json(result)
    else:
        print_table(f'{args.minutes:g} minutes of {args.model}', ('what', 'value'),
                    [[name, value] for name, value in result.items()])
    return 0 if result['flat'] else 1


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """The load, and what it left."""
    spec = ModelSpec(args.model)
    description = describe(spec)
    rule = BatchRule(8, across_steps=True)
    plans = whole_plans(description.graph, args.devices, rule)
    period_ns = 1000 * positive_us(args.slo_ms, '--slo-ms')
    dice = random.Random(args.seed)
    observation = any_observation(description)
    seen: list[Footprint] = []
    totals = {'chunks': 0, 'on_time': 0, 'opens': 0, 'resets': 0}

    def enter(number: int) -> Rider:
        options = StreamOptions(seed=number, period_ns=period_ns, lead_ns=period_ns)
        rider = Rider(engine.open_stream(options, plans[number % len(plans)]), observation)
        rider.observe()
        totals['opens'] += 1
        return rider

    with Engine(spec, provision(description.graph, args.devices, args.streams, rule)) as engine, \
            ExitStack() as stack:
        riders = [enter(number) for number in range(args.streams)]
        stack.callback(leave, riders)
        pids = [os.getpid(), *engine.worker_pids]
        rounds = max(4, round(args.minutes * 60 / args.every))
        end_s = time.monotonic() + args.minutes * 60
        for _ in progress(range(rounds), 'soak', args.json):
            until_s = min(end_s, time.monotonic() + args.every)
            while (left_s := until_s - time.monotonic()) > 0:
                ride(riders, min(left_s, dice.uniform(0.2, 1.0)))
                guest = dice.randrange(args.streams // 2, args.streams)
                if dice.random() < 0.5 or riders[guest].stream.ended is not None:
                    riders[guest].stream.close()
                    _settle(riders[guest], totals)
                    riders[guest] = enter(guest)
                else:
                    with suppress(StreamError):  # it ends this moment: replaced at its next turn
                        riders[guest].stream.reset()
                        riders[guest].observe()
                        totals['resets'] += 1
            ride(riders, _REST_S)
            for rider in riders:
                _settle(rider, totals)
            seen.append(footprint(pids))
    on_time_ratio = totals['on_time'] / max(1, totals['chunks'])
    return {**totals, 'minutes': args.minutes, 'on_time_ratio': on_time_ratio,
            **judge(seen, args.every)}


def judge(seen: list[Footprint], every_s: float) -> dict[str, Any]:
    """Growth over the last three quarters of a run; the first one fills caches.

    What is counted goes up and down by what a stream that has just left still holds: so the least
    of the first half is compared with the least of the last.
    """
    steady = seen[len(seen) // 4:]
    resident = np.array([one.resident_bytes for one in steady], float)
    hours = np.arange(len(steady)) * every_s / 3600
    slope = float(np.polyfit(hours, resident / _MB, 1)[0]) if len(steady) > 1 else 0.0
    rise_mb = (resident[-len(resident) // 4:].mean() - resident[:1 + len(resident) // 4].mean()
               ) / _MB
    half = (len(steady) + 1) // 2
    first, last = ({name: min(getattr(one, name) for one in part) for name in _COUNTED}
                   for part in (steady[:half], steady[-half:]))
    first['processes'] = steady[0].processes  # one that dies halfway is not made up for
    return {'resident_mb_first': resident[0] / _MB, 'resident_mb_last': resident[-1] / _MB,
            'resident_mb_per_hour': slope,
            **{f'{name}_{when}': counts[name] for name in _COUNTED
               for when, counts in (('first', first), ('last', last))},
            'flat': bool(first == last and (slope < FLAT_MB_PER_HOUR or rise_mb < 1.0))}


def _settle(rider: Rider, totals: dict[str, int]) -> None:
    """Count a rider's chunks and forget them, so that the bench itself does not grow."""
    totals['chunks'] += len(rider.chunks)
    totals['on_time'] += sum(end <= due for _, end, due in rider.chunks)
    rider.chunks.clear()
