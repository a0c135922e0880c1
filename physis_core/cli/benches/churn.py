"""Streams that come and go beside others that stay: does anybody notice, is anything left?"""

from __future__ import annotations

import argparse
import os
import random
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from physis_core.cli.footprint import Footprint, footprint
from physis_core.cli.inputs import add_engine_bench_arguments, positive_us
from physis_core.cli.report import print_json, print_table
from physis_core.cli.traffic import Rider, any_observation, leave, ride, sweep
from physis_core.errors import InputError, Refused
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.plan import BatchRule, Plan, Prediction, ranks_from_devices
from physis_core.runtime.engine import Engine, StreamOptions
from physis_core.runtime.provision import DeviceProvision, Provision


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_engine_bench_arguments(parser, slo_ms=100.0)
    parser.add_argument('--stay', type=int, default=4, metavar='N', help='streams that stay (4)')
    parser.add_argument('--guests', type=int, default=4, metavar='N',
                        help='most streams beside them at a time (4)')
    parser.add_argument('--opens', type=int, default=500, metavar='N',
                        help='streams that are opened and closed (500)')
    parser.add_argument('--seed', type=int, default=0, help='of who comes and goes when')


def run(args: argparse.Namespace) -> int:
    """Measure those who stay alone, then during the churn."""
    if min(args.stay, args.guests, args.opens, args.devices) < 1:
        raise InputError('--stay, --guests, --opens and --devices are at least 1')
    result = Churn(args).run()
    if args.json:
        print_json(result)
    else:
        print_table(f'{args.opens} opens and closes beside {args.stay} streams',
                    ('what', 'value'), [[name, value] for name, value in result.items()])
    return 0


class Churn:
    """One engine, streams that stay, and guests."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        spec = ModelSpec(args.model)
        description = describe(spec)
        graph = description.graph
        self._observation = any_observation(description)
        self._random = random.Random(args.seed)
        self._period_ns = 1000 * positive_us(args.slo_ms, '--slo-ms')
        slots = args.stay + args.guests
        rule = BatchRule(8, across_steps=True)
        own = DeviceProvision(tuple(range(graph.blocks)), graph.stages * slots)
        self._plans = [
            Plan('whole', graph, ranks_from_devices([device] * graph.stages), rule,
                 max_in_flight=2, prediction=Prediction(0, round(args.slo_ms * 500)))
            for device in range(args.devices)]
        self._engine = Engine(spec, Provision(graph, (own,) * args.devices, slots, rule,
                                              in_flight=2 * slots))

    def run(self) -> dict[str, Any]:
        """Everything, in order."""
        args = self._args
        with self._engine as engine, ExitStack() as stack:
            stay = [self._open(number) for number in range(args.stay)]
            stack.callback(leave, stay)
            self._visit(stay, args.guests * 2)  # the first visits make what all share
            alone_s = max(10.0, args.opens * 0.02)
            first_ns, last_ns = ride(stay, alone_s)
            pids = [os.getpid(), *engine.worker_pids]
            before = footprint(pids)
            alone = self._on_time(stay, first_ns, last_ns)
            begin_ns = time.monotonic_ns()
            refused = self._visit(stay, args.opens)
            end_ns = time.monotonic_ns()
            ride(stay, 1.0)
            after = footprint(pids)
            during = self._on_time(stay, begin_ns, end_ns)
        return {
            'opens': args.opens, 'refused': refused, 'seconds': (end_ns - begin_ns) / 1e9,
            'on_time_alone': alone, 'on_time_during': during,
            'worst_change': max(abs(a - b) for a, b in zip(alone, during, strict=True)),
            **_changes(before, after)}

    def _open(self, number: int) -> Rider:
        options = StreamOptions(seed=number, period_ns=self._period_ns, lead_ns=self._period_ns)
        rider = Rider(self._engine.open_stream(
            options, self._plans[number % len(self._plans)]), self._observation)
        rider.observe()
        return rider

    def _visit(self, stay: list[Rider], opens: int) -> int:
        """Guests come and go in random order; how many were refused."""
        guests: list[Rider] = []
        refused = 0
        for number in range(opens):
            if len(guests) == self._args.guests or (guests and self._random.random() < 0.5):
                guests.pop(self._random.randrange(len(guests))).stream.close()
            try:
                guests.append(self._open(number))
            except Refused:
                refused += 1
            ride([*stay, *guests], self._random.uniform(0.0, 0.03))
        leave(guests)
        sweep(stay)
        return refused

    def _on_time(self, riders: list[Rider], first_ns: int, last_ns: int) -> list[float]:
        return [rider.goodput(first_ns, last_ns).on_time_ratio for rider in riders]


def _changes(before: Footprint, after: Footprint) -> dict[str, int]:
    past = asdict(before)
    return {f'{name}_change': value - past[name] for name, value in asdict(after).items()}
