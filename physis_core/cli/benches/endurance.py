"""One stream that does not end: memory, outputs and positions after many thousand chunks."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from physis_core.cli.plan_runs import sensor
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.errors import InputError, StreamError
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import streamdiffusionv2
from physis_core.runtime.engine import Engine, StreamOptions

_PARTS = 10
_TIMEOUT_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--chunks', type=int, default=20_000, help='chunks of the stream (20000)')
    parser.add_argument('--devices', type=int, default=2, help='worker processes (2)')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Run the stream and compare its tenths."""
    if args.chunks < 100 * _PARTS:
        raise InputError(f'--chunks is {args.chunks}; give at least {100 * _PARTS}')
    spec = ModelSpec('dit', {'dim': 32, 'heads': 2, 'tokens': 4, 'steps': 2, 'blocks': 2,
                             'window': 4, 'sinks': 1, 'renoise': True})
    description = describe(spec)
    graph = description.graph
    plan = streamdiffusionv2(graph, args.devices)
    means, deviations, memory_mb = [], [], []
    start_s = time.monotonic()
    with Engine(spec, plan) as engine:
        stream = engine.open_stream(StreamOptions(period_ns=0, queue_chunks=64))
        with sensor(spec, [stream]):
            for _ in progress(range(_PARTS), 'endurance', args.json):
                outputs = np.stack([_positions(stream.next_chunk(_TIMEOUT_S))
                                    for _ in range(args.chunks // _PARTS)])
                means.append(float(outputs.mean()))
                deviations.append(float(outputs.std()))
                memory_mb.append(sum(map(_private_mb, engine.worker_pids)))
    _report({
        'chunks': args.chunks, 'devices': args.devices,
        'wall_s': round(time.monotonic() - start_s, 1),
        'worker_memory_growth_mb': round(memory_mb[-1] - memory_mb[1], 2),
        'worker_memory_mb': round(memory_mb[-1], 1),
        'output_mean_first': round(means[1], 4), 'output_mean_last': round(means[-1], 4),
        'output_mean_spread': round(max(means[1:]) - min(means[1:]), 5),
        'output_std_first': round(deviations[1], 4), 'output_std_last': round(deviations[-1], 4),
        'output_std_spread': round(max(deviations[1:]) - min(deviations[1:]), 5),
        'highest_position': max(graph.positions(args.chunks - 1)),
        'positions_limit': graph.history_slots,
    }, args.json)
    return 0


def _positions(chunk: Any) -> np.ndarray:
    if chunk is None:
        raise StreamError(f'no chunk came within {_TIMEOUT_S:g} s')
    positions: np.ndarray = chunk.outputs['positions']
    return positions


def _private_mb(pid: int) -> float:
    """Memory that belongs to a process alone [MiB]."""
    for line in Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines():
        if line.startswith('Private_Dirty:'):
            return int(line.split()[1]) / 1024
    return 0.0


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print_table('one endless stream', ['what', 'value'], [list(row) for row in result.items()])
