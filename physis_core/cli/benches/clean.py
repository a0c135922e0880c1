"""`clean` models: one stream leaves devices idle, many streams through the same stages fill them.

A chunk of such a model needs the history of the finished chunk before it, so one stream has little
more than one chunk under way, whatever the number of devices.  Stages are timed waits on virtual
devices; streams send as fast as they can.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from physis_core.cli.inputs import counts
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.cli.traffic import Rider, ride
from physis_core.errors import InputError
from physis_core.graph import KVMode, StageGraph
from physis_core.observability.stages import busy_ratio
from physis_core.planning.modes import full_split
from physis_core.runtime.engine import Engine, EngineOptions, StreamOptions
from physis_core.runtime.virtual import VirtualModel

COLUMNS = ('streams', 'utilisation', 'over_one_stream', 'ideal_utilisation', 'chunks_per_s',
           'response_ms')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--steps', type=int, default=3, help='denoising steps D (3)')
    parser.add_argument('--blocks', type=int, default=4,
                        help='blocks L; S = (D + 1) * L stages (4)')
    parser.add_argument('--devices', type=int, default=None,
                        help='virtual devices, in even runs of stages (S)')
    parser.add_argument('--stage-ms', type=float, default=5.0, help='time of a stage [ms] (5)')
    parser.add_argument('--streams', default='1,2,4,8,S', metavar='N,N,...',
                        help='stream counts; S is the number of stages')
    parser.add_argument('--seconds', type=float, default=5.0, help='measured time of a count (5)')
    parser.add_argument('--hosts', type=int, default=len(os.sched_getaffinity(0)),
                        help='processes that the devices share')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Measure each count."""
    if not args.stage_ms > 0 or not args.seconds > 0:
        raise InputError(f'--stage-ms {args.stage_ms:g} and --seconds {args.seconds:g} must be '
                         'positive')
    graph = StageGraph(args.steps, args.blocks, KVMode.CLEAN, window_chunks=1)
    args.devices = graph.stages if args.devices is None else args.devices
    if not 1 <= args.devices <= graph.stages:
        raise InputError(f'--devices is {args.devices}; {graph.stages} stages fill 1 to '
                         f'{graph.stages}')
    wanted = counts(args.streams.replace('S', str(graph.stages)), '--streams')
    rows = [measure(count, graph, args) for count in progress(wanted, 'clean', args.json)]
    one = next((row['utilisation'] for row in rows if row['streams'] == 1), float('nan'))
    for row in rows:
        row['over_one_stream'] = row['utilisation'] / one
    if args.json:
        print_json({'stages': graph.stages, 'devices': args.devices, 'stage_ms': args.stage_ms,
                    'counts': {str(row['streams']): row for row in rows}})
    else:
        print_table(f'{graph.stages} stages of {args.stage_ms:g} ms on {args.devices} devices',
                    COLUMNS, [[row[name] for name in COLUMNS] for row in rows])
    return 0


def measure(count: int, graph: StageGraph, args: argparse.Namespace) -> dict[str, Any]:
    """Utilisation of the devices with so many streams."""
    model = VirtualModel(graph, 0.0, args.stage_ms * 1000)
    plan = replace(full_split(graph, args.devices), max_in_flight=2)
    with Engine(model, plan, count, EngineOptions(virtual_hosts=args.hosts)) as engine, \
            ExitStack() as stack:
        riders = [Rider(engine.open_stream(StreamOptions(period_ns=0)), {}) for _ in range(count)]
        for rider in riders:
            stack.callback(rider.stream.close)
        ride(riders, 1.0 + 2 * graph.stages * args.stage_ms / 1e3)
        before = [len(rider.chunks) for rider in riders]
        first_ns, last_ns = ride(riders, args.seconds)
        chunks = [rider.chunks[past:] for rider, past in zip(riders, before, strict=True)]
        time.sleep(2 * args.stage_ms / 1e3)  # until what was running has been logged
        busy = [busy_ratio(log.latest(), first_ns, last_ns) for log in engine.stage_logs()]
    responses = [end - released for taken in chunks for released, end, _ in taken]
    return {
        'streams': count, 'utilisation': float(np.mean(busy)),
        'ideal_utilisation': min(1.0, count / ideal_streams(graph) * graph.stages / args.devices),
        'chunks_per_s': len(responses) / args.seconds,
        'response_ms': float(np.median(responses)) / 1e6 if responses else float('nan')}


def ideal_streams(graph: StageGraph) -> float:
    """Streams that fill one device per stage: one has D*L + 1 stages from chunk to chunk.

    Block 0 of the next chunk may start when the clean pass has ended block 0; then the last
    L - 1 stages of the clean pass overlap with it.
    """
    return float(graph.steps * graph.blocks + 1)
