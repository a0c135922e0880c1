"""What the engine adds to the slowest stage: a pipeline of virtual devices.

Every stage is a timed wait, everything around it is the real engine: period and response are
compared with S equal stages that hand over in no time.  A virtual device has a queue as a GPU has:
what waits for it begins when it comes free.  With ``--synchronous`` it has none, as a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time

import numpy as np

from physis_core.cli.progress import progress
from physis_core.errors import InputError, StreamError
from physis_core.graph import StageGraph
from physis_core.planning.plan import Plan, ranks_from_devices
from physis_core.runtime.engine import Engine, EngineOptions, StreamOptions
from physis_core.runtime.virtual import VirtualModel
from physis_core.simulation.jitter import Jitter
from physis_core.simulation.line import line_flow, stage_times_ns
from physis_core.units import NS_PER_MS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--devices', type=int, default=16, help='virtual devices')
    parser.add_argument('--stages', type=int, default=16, help='stages S, in even runs')
    parser.add_argument('--stage-ms', type=float, default=4.083, help='mean time of a stage [ms]')
    parser.add_argument('--chunks', type=int, default=2000, help='chunks to run')
    parser.add_argument('--cv', type=float, default=0.0,
                        help='coefficient of variation of a stage (the source is then greedy)')
    parser.add_argument('--slots', type=int, default=1, help='places between two devices')
    parser.add_argument('--pace', type=float, default=1.005,
                        help='period of the source, in periods of the slowest device; 0: greedy')
    parser.add_argument('--seed', type=int, default=0, help='of the variation')
    parser.add_argument('--synchronous', action='store_true',
                        help='a stage begins when the engine starts it, not when its device came '
                        'free (greedy source): shows what timers and the engine take in between')
    parser.add_argument('--hosts', type=int, default=len(os.sched_getaffinity(0)),
                        help='processes that the devices share')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Run the pipeline and report."""
    if args.chunks <= args.stages:
        raise InputError(f'{args.chunks} chunks for {args.stages} stages never fill the '
                         f'pipeline; give more than {args.stages}')
    model = VirtualModel(StageGraph(steps=1, blocks=args.stages), 0.0, args.stage_ms * 1000,
                         cv=args.cv, seed=args.seed, synchronous=args.synchronous)
    plan = _plan(args, model.graph)
    stages_per_device = max(len(plan.stages_on(device)) for device in range(plan.devices))
    ideal_period_ms = args.stage_ms * stages_per_device
    pace = 0.0 if args.cv or args.synchronous else args.pace
    period_ns = round(pace * ideal_period_ms * NS_PER_MS)
    delivered_ns, responses_ns, cpu_s, wall_s = _measure(args, model, plan, period_ns)
    steady = np.diff(delivered_ns[args.stages:])
    simulated = _simulated_period_ns(args, ideal_period_ms, period_ns)
    result = {
        'devices': plan.devices, 'stages': args.stages, 'stage_ms': args.stage_ms,
        'chunks': args.chunks, 'cv': args.cv, 'slots': args.slots, 'pace': pace,
        'synchronous': args.synchronous,
        'period_ms': float(steady.mean()) / NS_PER_MS,
        'period_over_ideal': float(steady.mean()) / NS_PER_MS / ideal_period_ms,
        'simulated_period_ratio': simulated / NS_PER_MS / ideal_period_ms,
        'response_ms': float(np.median(responses_ns)) / NS_PER_MS,
        'response_over_ideal': float(np.median(responses_ns)) / NS_PER_MS
        / (args.stage_ms * args.stages),
        'response_p99_over_ideal': float(np.percentile(responses_ns, 99)) / NS_PER_MS
        / (args.stage_ms * args.stages),
        'cpu_percent': 100 * cpu_s / wall_s,
        'host_processes': min(args.hosts, plan.devices),
    }
    _report(result, as_json=args.json)
    return 0


def _plan(args: argparse.Namespace, graph: StageGraph) -> Plan:
    device_of = [stage * min(args.devices, args.stages) // args.stages
                 for stage in range(args.stages)]
    return Plan('pipeline', graph, ranks_from_devices(device_of), slots_per_edge=args.slots,
                max_in_flight=(args.slots + 2) * args.stages)


def _simulated_period_ns(args: argparse.Namespace, ideal_period_ms: float, period_ns: int
                         ) -> float:
    """The period of the same line in the simulator, over the same chunks.

    It has as many lines of devices as there are devices here, and neither hops nor hosts.
    """
    devices = min(args.devices, args.stages)
    times = stage_times_ns(devices, round(ideal_period_ms * NS_PER_MS), args.chunks,
                           Jitter(args.cv, seed=args.seed))
    left_ns = line_flow(times, args.slots, period_ns).left_ns
    return float(np.diff(left_ns[args.stages:]).mean())


def _measure(args: argparse.Namespace, model: VirtualModel, plan: Plan, period_ns: int
             ) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Delivery times and responses [ns] of all chunks; CPU and wall time of the run [s]."""
    delivered_ns = np.zeros(args.chunks, np.int64)
    responses_ns = np.zeros(args.chunks, np.int64)
    options = EngineOptions(virtual_hosts=args.hosts)
    with Engine(model, plan, options=options) as engine:
        cpu_before_s = _cpu_s(engine.worker_pids)
        start_s = time.monotonic()
        stream = engine.open_stream(StreamOptions(period_ns=period_ns))
        for index in progress(range(args.chunks), 'pipeline', args.json):
            chunk = stream.next_chunk(60.0 + args.stages * args.stage_ms / 1000)
            if chunk is None:
                raise StreamError(f'chunk {index} did not arrive')
            delivered_ns[index] = time.monotonic_ns()
            responses_ns[index] = delivered_ns[index] - chunk.release_ns
        return (delivered_ns, responses_ns, _cpu_s(engine.worker_pids) - cpu_before_s,
                time.monotonic() - start_s)


def _cpu_s(pids: list[int]) -> float:
    """CPU time of this process and its hosts so far [s]."""
    ticks = 0
    for pid in pids:
        with open(f'/proc/{pid}/stat') as stat:
            fields = stat.read().rpartition(')')[2].split()
        ticks += int(fields[11]) + int(fields[12])
    own = resource.getrusage(resource.RUSAGE_SELF)
    return ticks / os.sysconf('SC_CLK_TCK') + own.ru_utime + own.ru_stime


def _report(result: dict[str, float], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f'{name:>24}  {value:.4g}')
