"""The front door on virtual devices: does the engine sustain what the planner promised?

In real time by the engine itself, or by its twin: the same admission and the same dispatch code
under a virtual clock, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.cli.inputs import DEFAULT_DEVICE, positive_us
from physis_core.cli.progress import progress
from physis_core.cli.traffic import Measured, Rider, measure, ride
from physis_core.errors import InputError, Refused
from physis_core.models.presets import load_preset
from physis_core.observability.goodput import PoolGoodput, StreamGoodput, stream_goodput
from physis_core.observability.stages import BatchNumbers
from physis_core.planning.admission import Admission, NoRoom
from physis_core.planning.capacity import best_placement
from physis_core.planning.cluster import Cluster, uniform_cluster
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.plan import Plan
from physis_core.planning.pool import StreamClass
from physis_core.planning.profile import BatchTimes, Profile
from physis_core.planning.slo import SLO
from physis_core.runtime.engine import EngineOptions
from physis_core.runtime.front_door import (
    HEADROOM,
    FrontDoor,
    predicted_plan,
    promised_response_us,
    with_headroom,
)
from physis_core.runtime.virtual import VirtualModel
from physis_core.simulation.jitter import Jitter
from physis_core.simulation.twin import ChunkRecord, Stream, Twin, profile_ns

SPARE_SLOTS = 4


def add_virtual_arguments(parser: argparse.ArgumentParser) -> None:
    """What --virtual needs besides."""
    parser.add_argument('--virtual', action='store_true', help='stages are timed waits')
    parser.add_argument('--profile', default='analytic:wan2.1-1.3b', metavar='WHAT',
                        help='of --virtual: analytic:PRESET, or a file (analytic:wan2.1-1.3b)')
    parser.add_argument('--device-model', default=DEFAULT_DEVICE, metavar='NAME',
                        help=f'device that analytic costs are for ({DEFAULT_DEVICE})')
    parser.add_argument('--memory-gb', type=float, default=None, metavar='GB',
                        help='memory for weights and KV on each virtual device')
    parser.add_argument('--periods', type=int, default=200,
                        help='measured periods of every virtual stream (200)')
    parser.add_argument('--cv', type=float, default=0.0,
                        help='coefficient of variation of virtual stage times (0)')
    parser.add_argument('--slow-down', type=float, default=1.0, metavar='K',
                        help='stretch all virtual times, where this machine is too slow (1)')
    parser.add_argument('--simulate', action='store_true',
                        help='virtual devices under a virtual clock, instead of the engine')
    parser.add_argument('--hosts', type=int, default=2,
                        help='processes that virtual devices share (2)')


def run_virtual(args: argparse.Namespace, count: int | None) -> dict[str, Any]:
    """Open ``count`` streams (None: until one is refused) and serve them."""
    profile = stretched(read_profile(args), args.slow_down)
    slo = SLO(round(args.slow_down * positive_us(args.slo_ms, '--slo-ms')))
    cluster = uniform_cluster(args.devices, load_device(args.device_model), args.memory_gb)
    promised = len(best_placement(cluster, StreamClass(profile, slo.period_us))
                   ['portfolio'].placed)
    wanted = promised + 1 if count is None else count
    model = virtual_model(profile, args.cv)
    options = EngineOptions(virtual_hosts=args.hosts)
    with FrontDoor(model, profile, cluster, wanted + SPARE_SLOTS, options) as door, \
            ExitStack() as stack:
        riders, refusal = admit(door, slo, wanted, stack, args.json)
        measured = serve(door, riders, cluster, slo, args)
    return {**_promise(promised, len(riders), refusal, args, measured.goodput),
            'measured': measured}


def run_simulated(args: argparse.Namespace, count: int | None) -> dict[str, Any]:
    """The same under a virtual clock."""
    profile = read_profile(args)
    slo = SLO(positive_us(args.slo_ms, '--slo-ms'))
    cluster = uniform_cluster(args.devices, load_device(args.device_model), args.memory_gb)
    promised = len(best_placement(cluster, StreamClass(profile, slo.period_us))
                   ['portfolio'].placed)
    admission, refusal = Admission(cluster), None
    planned = with_headroom(profile, HEADROOM)
    plans: list[Plan] = []
    while count is None or len(plans) < count:
        try:
            plan = admission.admit(f'stream-{len(plans)}', planned, slo)
            plans.append(predicted_plan(plan, profile, slo))
        except NoRoom as error:
            refusal = str(error)
            break
    lead_ns = 1000 * promised_response_us(profile, slo)
    streams = [Stream(plan, profile_ns(profile.mean_us), chunks=args.periods,
                      deadline_ns=lead_ns, open_ns=1000 * slo.period_us * number // len(plans))
               for number, plan in enumerate(plans)]
    outcome = Twin(streams, Jitter(args.cv)).run()
    accounts = tuple(_account(records, slo, lead_ns) for records in outcome.chunks)
    pool = PoolGoodput(accounts, args.devices, outcome.end_ns / 1e9)
    return {**_promise(promised, len(plans), refusal, args, pool),
            'measured': Measured(pool, BatchNumbers(
                outcome.batch_count, outcome.task_count / outcome.batch_count, float('nan'), {},
                float('nan')))}


def _account(records: Sequence[ChunkRecord], slo: SLO, lead_ns: int) -> StreamGoodput:
    done = [record for record in records if record.output_ns is not None]
    planned_ns = np.array([record.planned_ns for record in done], np.int64)
    return stream_goodput(planned_ns, np.array([record.output_ns for record in done], np.int64),
                          planned_ns + lead_ns, 1000 * slo.period_us)


def _promise(promised: int, admitted: int, refusal: str | None, args: argparse.Namespace,
             pool: PoolGoodput) -> dict[str, Any]:
    return {'promised': promised, 'admitted': admitted,
            'admitted_over_promised': admitted / promised if promised else float('nan'),
            'refusal': refusal, 'periods': args.periods, 'cv': args.cv,
            'misses': sum(one.outputs + one.skipped - one.on_time for one in pool.streams),
            'outputs': sum(one.outputs for one in pool.streams)}


def admit(door: FrontDoor, slo: SLO, wanted: int, stack: ExitStack, quiet: bool
          ) -> tuple[list[Rider], str | None]:
    """Open streams evenly over a period, as robots would come; why the last one was refused."""
    riders: list[Rider] = []
    begin_s = time.monotonic()
    for number in progress(range(wanted), 'open', quiet):
        due_s = begin_s + number * slo.period_us / 1e6 / wanted
        ride(riders, max(0.0, due_s - time.monotonic()))
        try:
            stream = door.open_stream('virtual', slo)
        except Refused as error:
            return riders, str(error)
        stack.callback(stream.close)
        riders.append(Rider(stream, {}))
    return riders, None


def serve(door: FrontDoor, riders: list[Rider], cluster: Cluster, slo: SLO,
          args: argparse.Namespace) -> Measured:
    """Run for so many periods, after a warm-up of as many as a chunk takes."""
    if not riders:
        raise InputError('no stream was admitted; give more devices or a longer period')
    period_s = slo.period_us / 1e6
    warm_up_s = max(args.warm_up, 3 * (riders[0].stream.options.lead_ns or 0) / 1e9)
    return measure(door.engine, riders, len(cluster.devices), args.periods * period_s, warm_up_s)


def read_profile(args: argparse.Namespace) -> Profile:
    """The profile that --profile names."""
    kind, _, name = args.profile.partition(':')
    if kind == 'analytic' and name:
        return analytic_profile(load_preset(name), load_device(args.device_model), args.bmax)
    profile = Profile.load(Path(args.profile))
    return profile.with_max_batch(min(args.bmax, profile.max_batch))


def virtual_model(profile: Profile, cv: float) -> VirtualModel:
    """A model that takes the profile's times: t(B) = a + b*B through its ends.

    Raises:
        InputError: its blocks differ, which a virtual model cannot.
    """
    if len(profile.groups) > 1:
        raise InputError(f'the profile of `{profile.model}` has {len(profile.groups)} groups of '
                         'blocks; a virtual model has one')
    times_us = profile.groups[0].times.mean_us
    each_us = (times_us[-1] - times_us[0]) / max(1, len(times_us) - 1)
    return VirtualModel(profile.graph, times_us[0] - each_us, each_us, cv=cv)


def stretched(profile: Profile, factor: float) -> Profile:
    """The profile with all times multiplied."""
    if not factor > 0:
        raise InputError(f'--slow-down is {factor:g}; give more than 0')

    def stretch(times: BatchTimes) -> BatchTimes:
        return BatchTimes(*(tuple(round(factor * time) for time in series)
                            for series in (times.mean_us, times.p50_us, times.p99_us)))
    return replace(profile, groups=tuple(
        replace(group, times=stretch(group.times)) for group in profile.groups))
