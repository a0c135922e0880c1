"""Time of one stage by batch, against the roofline of this device.

The window is full, weights are random.  The roofline is the larger of two times: the stage's
operations at the rate of a large matrix product measured here, and its bytes at the rate of a
large copy.  On a GPU a stage is a CUDA graph, as in the engine, and attends with the kernel that
was fastest; on a CPU the kernels are timed too, and torch's choice is what runs.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from physis_core.cli.lone_stages import LoneStages, pick_device, roofline
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.errors import InputError
from physis_core.models.protocol import ModelDescription
from physis_core.models.registry import describe
from physis_core.models.sizes import spec_of
from physis_core.runtime.kv_pool import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model_arguments(parser)
    parser.add_argument('--batch', type=int, nargs='+', default=[1, 2, 4, 8], help='batch sizes')
    parser.add_argument('--repeats', type=int, default=30, help='calls per batch size at most')
    parser.add_argument('--seconds', type=float, default=10.0,
                        help='time after which no further batch size is begun [s]')


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which model runs where."""
    parser.add_argument('model', nargs='?', default='dit',
                        help='a model or a published size, such as wan2.1-1.3b')
    parser.add_argument('--blocks', type=int, default=1, help='blocks to hold and run')
    parser.add_argument('--latents', type=int, help='latents per chunk (default: as published)')
    parser.add_argument('--window', type=int, help='earlier chunks in the window')
    parser.add_argument('--dtype', choices=['float32', 'bfloat16'],
                        help='default: as published; float32 on a CPU')
    parser.add_argument('--device', default='auto', help='cpu, cuda, cuda:N (default: cuda if any)')
    parser.add_argument('--threads', type=int, help='threads of a CPU')
    parser.add_argument('--eager', action='store_true',
                        help='no CUDA graphs, and the attention that torch chooses: to compare')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def lone_stages(args: argparse.Namespace, steps: list[int], streams: int, max_batch: int
                ) -> LoneStages:
    """The model that the options ask for, for batches up to a size.

    Raises:
        InputError: the model has fewer blocks.
    """
    device = pick_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    options: dict[str, Any] = {name: getattr(args, name) for name in ('latents', 'window', 'dtype')
                               if getattr(args, name) is not None}
    published = describe(spec_of(args.model))
    if device == 'cpu' and args.dtype is None and published.dtype != 'float32':
        options['dtype'] = 'float32'
    if not 0 < args.blocks <= published.graph.blocks:
        raise InputError(f'model `{args.model}` has {published.graph.blocks} blocks; --blocks '
                         f'{args.blocks} must be from 1 to that')
    return LoneStages(spec_of(args.model, **options), range(args.blocks), steps, streams, device,
                      0 if args.eager else max_batch)


def about(args: argparse.Namespace, stages: LoneStages) -> dict[str, Any]:
    """What was measured, for the report."""
    description: ModelDescription = stages.description
    chunks = 1 + description.graph.history_slots
    name = (torch.cuda.get_device_name(stages.device) if stages.device.startswith('cuda')
            else f'cpu, {torch.get_num_threads()} threads')
    return {'model': args.model, 'device': name, 'dtype': description.dtype,
            'blocks': args.blocks, 'attention': stages.attention.name, 'cuda_graphs': stages.graphs,
            **({'graphs_refused': stages.refusal} if stages.refusal else {}),
            'tokens': description.tokens,
            'context_tokens': description.kv_chunk.shape[0] * chunks
            + description.tokens - description.kv_chunk.shape[0]}


def run(args: argparse.Namespace) -> int:
    """Measure and report."""
    stages = lone_stages(args, [0], max(args.batch), max(args.batch))
    one = Row(0, stages.full, 0)
    attention = stages.attention.times_ms or stages.attention_times([one]).times_ms
    peaks = roofline(stages.device, stages.description.hidden.torch_dtype)
    flops = stages.flops(0, one)
    results: list[dict[str, Any]] = []
    start_s = time.monotonic()
    for batch in progress(args.batch, 'stage', args.json):
        if results and time.monotonic() - start_s > args.seconds:
            break
        rows = [Row(stream, stages.full, 0) for stream in range(batch)]
        times_ms = 1000 * np.concatenate([stages.times_s(block, rows, args.repeats, args.seconds)
                                          for block in range(args.blocks)])
        bound_ms = 1000 * max(batch * flops / peaks['flops_per_s'],
                              stages.bytes_read(0, batch) / peaks['bytes_per_s'])
        results.append({
            'batch': batch, 'calls': len(times_ms), 'mean_ms': float(times_ms.mean()),
            'p50_ms': float(np.median(times_ms)), 'p99_ms': float(np.percentile(times_ms, 99)),
            'roofline_ms': bound_ms, 'of_roofline': bound_ms / float(np.median(times_ms))})
    _report({**about(args, stages), 'stage_gflop': flops / 1e9,
             'device_gflops': peaks['flops_per_s'] / 1e9,
             'device_gbytes_per_s': peaks['bytes_per_s'] / 1e9,
             'attention_block_ms': attention, 'weight_bytes': stages.weight_bytes(0),
             'bytes_read': stages.bytes_read(0, 1),
             'batches_left_out': args.batch[len(results):], 'batches': results}, args.json)
    return 0


def _report(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    rows = result.pop('batches')
    print(', '.join(f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}'
                    for name, value in result.items()))
    print_table('one stage, by batch', list(rows[0]), [list(row.values()) for row in rows])
