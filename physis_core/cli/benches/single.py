"""One device and one stream: one chunk after the other, against time multiplexing with batching.

Multiplexed, D chunks are under way, one at each step, and every call runs a block on all of them:
a chunk leaves every L calls on D rows instead of every D*L calls on one.  Only some blocks are
held; times are also given for all L.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from physis_core.cli.benches.stage import about, add_model_arguments, lone_stages
from physis_core.cli.lone_stages import LoneStages
from physis_core.cli.report import print_json, print_table
from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models.registry import describe
from physis_core.models.sizes import spec_of
from physis_core.runtime.kv_pool import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model_arguments(parser)
    parser.add_argument('--chunks', type=int, default=20, help='chunks to deliver in each way')
    parser.add_argument('--seconds', type=float, default=30.0, help='time per way at most [s]')


def run(args: argparse.Namespace) -> int:
    """Measure both and report."""
    if args.chunks < 1 or not args.seconds > 0:
        raise InputError(f'--chunks is {args.chunks} and --seconds {args.seconds:g}; give at least '
                         '1 chunk and more than 0 s')
    graph = describe(spec_of(args.model)).graph
    if graph.kv_mode is not KVMode.SAME_STEP:
        raise InputError(f'model `{args.model}` keeps KV in mode `{graph.kv_mode.value}`: chunks '
                         'of one stream cannot be under way together; choose a `same_step` model')
    steps = list(range(graph.steps))
    stages = lone_stages(args, steps, streams=1, max_batch=len(steps))
    scale = graph.blocks / args.blocks
    rows = []
    for name, chunk_rows in (('sequential', [[step] for step in steps]), ('multiplexed', [steps])):
        times_ms = 1000 * np.array(_chunk_times_s(stages, args, chunk_rows))
        period_ms = float(np.median(times_ms))
        latency = len(chunk_rows[0])  # a chunk passes through that many deliveries
        rows.append({'way': name, 'batch': latency, 'period_ms': period_ms,
                     'mean_ms': float(times_ms.mean()),
                     'p99_ms': float(np.percentile(times_ms, 99)),
                     'period_all_blocks_ms': period_ms * scale,
                     'response_all_blocks_ms': period_ms * scale * latency})
    change = rows[1]['period_ms'] / rows[0]['period_ms'] - 1.0
    _report({**about(args, stages), 'steps': graph.steps, 'all_blocks': graph.blocks,
             'change_percent': 100 * change, 'ways': rows}, args.json)
    return 0


def _chunk_times_s(stages: LoneStages, args: argparse.Namespace, calls: list[list[int]]
                   ) -> list[float]:
    """Intervals between chunks [s]; each call runs the blocks on rows at the given steps.

    Rows of one call belong to successive chunks, the earliest at the last step.
    """
    def deliver(chunk: int) -> None:
        for steps in calls:
            rows = [Row(0, chunk + steps[-1] - step, step) for step in steps]
            hidden = None
            for block in range(args.blocks):
                hidden = stages.run(block, rows, hidden, keep=True)
        stages.synchronise()

    deliver(stages.full)
    times_s: list[float] = []
    while len(times_s) < args.chunks and sum(times_s) < args.seconds:
        start_s = time.perf_counter()
        deliver(stages.full + 1 + len(times_s))
        times_s.append(time.perf_counter() - start_s)
    return times_s


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    rows = result.pop('ways')
    print(', '.join(f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}'
                    for name, value in result.items()))
    print_table('one device, one stream', list(rows[0]), [list(row.values()) for row in rows])
