"""How many streams share a pool of devices, every chunk under a deadline.

A model runs on real devices, one process each; with --virtual a stage is a timed wait, and the
front door admits as many streams as the planner promises.  `deadline` is the engine's dispatch;
`fifo` runs the same streams one task at a time in order of arrival; `even_split` gives each stream
a device of its own to share only in time, nothing batched across streams.

Noise: whatever else the machine does makes chunks late that the policy would have had on time, so
a count has failed only when each of --tries runs has; one that is on time has shown that it can
be done.  That rule is the same for all configurations.  The search for `auto` takes at most
--budget seconds a configuration, gives up a run as soon as it has missed too much, and does not
tell counts apart that differ by less than a twentieth.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from physis_core.cli.inputs import add_engine_bench_arguments, counts, positive_us
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.cli.traffic import Measured, Rider, any_observation, measure, ride
from physis_core.cli.virtual_streams import add_virtual_arguments, run_simulated, run_virtual
from physis_core.errors import InputError
from physis_core.graph import StageGraph
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.plan import BatchRule, Plan, Prediction, ranks_from_devices
from physis_core.runtime.engine import Engine, EngineOptions, StreamOptions
from physis_core.runtime.policies import POLICIES
from physis_core.runtime.provision import DeviceProvision, Provision
from physis_core.units import NS_PER_S

ON_TIME = 0.999
COLUMNS = ('config', 'streams', 'on time', 'good/s', 'T p50 ms', 'T p99', 'R p99 ms', 'batch',
           'dev s/out')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_engine_bench_arguments(parser, slo_ms=160.0)  # what a chunk of so101 plays
    parser.add_argument('--streams', default='1,2,4,8,16,auto', metavar='N,N,...',
                        help='stream counts; `auto` searches the highest that is on time')
    parser.add_argument('--max-response-ms', type=float, default=None, metavar='MS',
                        help='deadline of a chunk after its planned entrance, if not the interval')
    parser.add_argument('--bmax', type=int, default=8, metavar='B', help='largest batch (8)')
    parser.add_argument('--policies', default='fifo', metavar='NAME,...',
                        help=f'compared with `deadline` and even split: {", ".join(POLICIES)}')
    parser.add_argument('--most', type=int, default=128, metavar='N',
                        help='streams that `auto` tries at most (128)')
    parser.add_argument('--seconds', type=float, default=5.0, help='measured time of a count (5)')
    parser.add_argument('--tries', type=int, default=3,
                        help='`auto` takes a count that is on time in one of so many runs (3)')
    parser.add_argument('--budget', type=float, default=75.0, metavar='S',
                        help='time that a search of `auto` takes at most (75)')
    parser.add_argument('--warm-up', type=float, default=1.5, help='before that [s] (1.5)')
    add_virtual_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure every configuration at every count."""
    wanted, auto = _read_counts(args.streams)
    if args.virtual:
        return _run_virtual(args, [*wanted, None] if auto else list(wanted))
    spec = ModelSpec(args.model)
    result: dict[str, Any] = {
        'model': args.model, 'devices': args.devices, 'slo_ms': args.slo_ms,
        'max_response_ms': args.max_response_ms or args.slo_ms}
    for configuration in _configurations(spec, args):
        with Bench(spec, configuration, args) as bench:
            rows = {str(count): bench.row(count)
                    for count in progress(wanted, configuration.name, args.json)}
            if auto:
                best, row = highest(bench.best_row, args.most, good_already(rows), args.budget)
                rows['auto'] = {'streams': best, **row}
            result[configuration.name] = rows
    if auto:
        even = result['even_split']['auto']['streams']
        result['auto_over_even_split'] = result['deadline']['auto']['streams'] / max(1, even)
    _report(result, args.json)
    return 0


def _run_virtual(args: argparse.Namespace, wanted: Sequence[int | None]) -> int:
    rows = {}
    for count in wanted:
        found = (run_simulated if args.simulate else run_virtual)(args, count)
        measured = found.pop('measured')
        rows['auto' if count is None else str(count)] = {
            'streams': found['admitted'], **found, **row(measured)}
    _report({'model': args.profile, 'devices': args.devices, 'slo_ms': args.slo_ms,
             'deadline': rows}, args.json)
    return 0


@dataclass(frozen=True)
class Configuration:
    """One way of sharing the devices.

    Attributes:
        name: for people.
        policy: what a device runs next.
        rule: what it may batch.
        plans: the plans of streams 0, 1, ..., repeated as often as there are streams.
    """

    name: str
    policy: str
    rule: BatchRule
    plans: Sequence[Plan]


class Bench:
    """One engine for all counts of a configuration.  Use it as a context manager."""

    def __init__(self, spec: ModelSpec, configuration: Configuration, args: argparse.Namespace
                 ) -> None:
        self._args = args
        self._configuration = configuration
        self._period_ns = 1000 * positive_us(args.slo_ms, '--slo-ms')
        self._lead_ns = 1000 * positive_us(args.max_response_ms or args.slo_ms,
                                           '--max-response-ms')
        description = describe(spec)
        self._observation = any_observation(description)
        self._engine = Engine(
            spec, provision(description.graph, args.devices, args.most, configuration.rule),
            options=EngineOptions(policy=configuration.policy))
        self._response_us = 0

    def __enter__(self) -> Bench:
        try:
            self._response_us = self._alone_us()
        except BaseException:
            self._engine.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def row(self, count: int, give_up: bool = False) -> dict[str, Any]:
        """What so many streams get; ``give_up``: end a run when it has missed too much."""
        with ExitStack() as stack:
            riders = [self._open(number, stack) for number in range(count)]
            allowed = (1 - ON_TIME) * count * self._args.seconds * NS_PER_S / self._period_ns
            measured = measure(self._engine, riders, self._args.devices, self._args.seconds,
                               self._args.warm_up, allowed if give_up else None)
        return row(measured)

    def best_row(self, count: int) -> dict[str, Any]:
        """The best of several tries: what else this machine does must not decide a search."""
        best: dict[str, Any] = {}
        for _ in range(max(1, self._args.tries)):
            found = self.row(count, give_up=True)
            if not best or found['on_time_ratio'] > best['on_time_ratio']:
                best = found
            if best['on_time_ratio'] >= ON_TIME:
                break
        return best

    def _open(self, number: int, stack: ExitStack, period_ns: int | None = None) -> Rider:
        plans = self._configuration.plans
        plan = predicted(plans[number % len(plans)], self._response_us)
        options = StreamOptions(
            seed=number, lead_ns=self._lead_ns, skip_late=True,
            period_ns=self._period_ns if period_ns is None else period_ns)
        rider = Rider(self._engine.open_stream(options, plan), self._observation)
        stack.callback(rider.stream.close)
        rider.observe()
        return rider

    def _alone_us(self) -> int:
        """Response of a stream that has the devices to itself [us]."""
        with ExitStack() as stack:
            rider = self._open(0, stack)
            ride([rider], self._args.warm_up)
        if not rider.chunks:
            raise InputError(f'no chunk within {self._args.warm_up:g} s; give a longer --warm-up')
        return round(median(end - released for released, end, _ in rider.chunks) / 1e3)


def provision(graph: StageGraph, devices: int, slots: int, rule: BatchRule) -> Provision:
    """Every device holds all blocks, and any stream may lie on any of them."""
    if devices < 1:
        raise InputError(f'--devices is {devices}; give at least 1')
    own = DeviceProvision(tuple(range(graph.blocks)), -(-slots * graph.stages // devices)
                          + graph.stages)
    return Provision(graph, (own,) * devices, slots, rule, in_flight=2 * slots)


def predicted(plan: Plan, response_us: int) -> Plan:
    """The plan with a measured response."""
    return Plan(plan.mode, plan.graph, plan.ranks, plan.batch, max_in_flight=2,
                prediction=Prediction(0, response_us))


def whole_plans(graph: StageGraph, devices: int, rule: BatchRule) -> list[Plan]:
    """A stream lives on one device, the next stream on the next."""
    return [Plan('whole', graph, ranks_from_devices([device] * graph.stages), rule,
                 max_in_flight=2) for device in range(devices)]


def good_already(rows: Mapping[str, Mapping[str, Any]]) -> tuple[int, dict[str, Any]]:
    """The highest count among those measured whose streams are on time, and what it got."""
    good = max((int(count) for count, found in rows.items()
                if found['on_time_ratio'] >= ON_TIME), default=0)
    return good, dict(rows[str(good)]) if good else {}


def highest(row_of: Callable[[int], Mapping[str, Any]], most: int,
            known: tuple[int, dict[str, Any]], budget_s: float = math.inf
            ) -> tuple[int, dict[str, Any]]:
    """The highest count whose streams are on time: by half more, then halving the interval.

    ``known``: a count that is, and what it got.  Counts are told apart to a twentieth.
    """
    end_s = time.monotonic() + budget_s
    good, best = known
    bad = most + 1
    while bad - good > max(1, good // 20) and time.monotonic() < end_s:
        count = min(max(1, good + (good + 1) // 2), most) if bad > most else (good + bad) // 2
        found = row_of(count)
        if found['on_time_ratio'] >= ON_TIME:
            good, best = count, dict(found)
        else:
            bad = count
            best = best or dict(found)  # where not even one stream is on time: what it got
        if good == most:
            break
    return good, best


def row(measured: Measured) -> dict[str, Any]:
    """One count as the bench reports it; times in ms, the median stream and the worst one."""
    pool = measured.goodput
    return {
        'on_time_ratio': pool.on_time_ratio,
        'worst_stream_on_time_ratio': min(one.on_time_ratio for one in pool.streams),
        'goodput_per_s': pool.goodput_per_s,
        'period_ms': {'p50': _middle([one.period_p50_ms for one in pool.streams]),
                      'p99': max(one.period_p99_ms for one in pool.streams)},
        'streams_period_ms': [{'p50': one.period_p50_ms, 'p99': one.period_p99_ms}
                              for one in pool.streams],
        'response_ms': {'p50': _middle([one.response_p50_ms for one in pool.streams]),
                        'p99': max(one.response_p99_ms for one in pool.streams)},
        'batch_mean': measured.batches.mean,
        'batch_gain': measured.batches.gain,
        'device_s_per_output': pool.device_s_per_output,
    }


def _middle(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else float('nan')


def _read_counts(text: str) -> tuple[list[int], bool]:
    parts = text.split(',')
    numbers = ','.join(part for part in parts if part != 'auto')
    return (counts(numbers, '--streams') if numbers else []), 'auto' in parts


def _configurations(spec: ModelSpec, args: argparse.Namespace) -> list[Configuration]:
    graph = describe(spec).graph
    joint = BatchRule(args.bmax, across_steps=True)
    apart = BatchRule(args.bmax, across_steps=True, across_streams=False)
    shared = whole_plans(graph, args.devices, joint)
    found = [Configuration('deadline', 'deadline', joint, shared),
             Configuration('even_split', 'deadline', apart,
                           whole_plans(graph, args.devices, apart))]
    found += [Configuration(name, name, joint, shared) for name in args.policies.split(',')]
    return found


def _report(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    rows = []
    for name, counted in result.items():
        if not isinstance(counted, dict):
            continue
        for count, one in counted.items():
            label = f'{count} ({one["streams"]})' if count == 'auto' else count
            rows.append([name, label, one['on_time_ratio'], one['goodput_per_s'],
                         one['period_ms']['p50'], one['period_ms']['p99'],
                         one['response_ms']['p99'], one['batch_mean'],
                         one['device_s_per_output']])
    print_table(f'{result["model"]} on {result["devices"]} device(s), a chunk every '
                f'{result["slo_ms"]:g} ms', COLUMNS, rows)
