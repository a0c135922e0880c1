"""Measure what a model's stages take on this device, for B = 1 to Bmax, and write a profile.

Windows are full and members of a batch are of different streams.  Warm-up calls are left out.
Times of all measured blocks are pooled; where noise would make a larger batch faster, the time of
the smaller one stands.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.cli.lone_stages import LoneStages, pick_device
from physis_core.cli.progress import progress
from physis_core.cli.report import check_place, print_json, print_table, print_written, write_text
from physis_core.errors import InputError
from physis_core.gpus import Gpus, unfit
from physis_core.models.registry import describe
from physis_core.models.sizes import spec_of
from physis_core.planning.devices import described_name
from physis_core.planning.profile import BatchTimes, BlockGroup, Profile
from physis_core.runtime.kv_pool import Row

_WARM_UPS = 3
_DISTURBED = 1.25  # mean over median; a few per cent on an idle machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('model', help='a model, a published size, or a module of your own, '
                        'such as so101, wan2.1-1.3b, my_model')
    parser.add_argument('--bmax', type=int, default=8, metavar='B', help='largest batch (8)')
    parser.add_argument('--blocks', type=int, default=2, metavar='N',
                        help='blocks to measure, which stand for all (2)')
    parser.add_argument('--repeats', type=int, default=50, metavar='N',
                        help='calls for each block and batch (50)')
    parser.add_argument('--seconds', type=float, default=10.0, metavar='S',
                        help='time for each block and batch at most (10)')
    parser.add_argument('--device', default='auto', help='cpu, cuda or cuda:N (cuda if any)')
    parser.add_argument('--threads', type=int, default=1, metavar='N',
                        help='threads of a CPU (1, as a worker process has)')
    parser.add_argument('--dtype', choices=['float32', 'bfloat16'], default=None,
                        help='as published; float32 on a CPU')
    parser.add_argument('--out', type=Path, default=None, metavar='FILE', help='where to write it')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Measure, write, report."""
    check_place(args.out)
    profile = measure(args)
    group = profile.groups[0]
    for sentence in [*remarks(pick_device(args.device)), *disturbed(group.times)]:
        print(sentence, file=sys.stderr)
    if args.out is not None:
        write_text(args.out, profile.to_json())
        print_written(args.out, f'profile of `{profile.model}`')
    rows = [{'batch': batch, 'mean_us': mean, 'p50_us': p50, 'p99_us': p99}
            for batch, (mean, p50, p99) in enumerate(
                zip(group.times.mean_us, group.times.p50_us, group.times.p99_us, strict=True), 1)]
    if args.json:
        print_json({'model': profile.model, 'device': profile.device, 'dtype': profile.dtype,
                    'weight_bytes': group.weight_bytes, 'kv_bytes': group.kv_bytes,
                    'hop_bytes': profile.hop_bytes, 'times': rows})
    else:
        print_table(f'{profile.model} on {profile.device}: one stage', list(rows[0]),
                    [list(row.values()) for row in rows])
    return 0


def measure(args: argparse.Namespace) -> Profile:
    """The profile of a model on a device that is here."""
    device = pick_device(args.device)
    description = describe(spec_of(args.model))
    graph = description.graph
    for name, value, most in (('bmax', args.bmax, 256), ('blocks', args.blocks, graph.blocks),
                              ('repeats', args.repeats, 10 ** 6), ('threads', args.threads, 1024)):
        if not 1 <= value <= most:
            raise InputError(f'--{name} is {value}; for `{args.model}` it goes from 1 to {most}')
    torch.set_num_threads(args.threads)
    options: dict[str, Any] = {} if args.dtype is None else {'dtype': args.dtype}
    if device == 'cpu' and args.dtype is None and description.dtype != 'float32':
        options['dtype'] = 'float32'
    stages = LoneStages(spec_of(args.model, **options), range(args.blocks), [0], args.bmax, device,
                        args.bmax)
    description = stages.description
    times_us = [_batch_us(stages, args, batch) for batch in progress(
        range(1, args.bmax + 1), f'profile {args.model}', quiet=args.json)]
    group = BlockGroup(
        blocks=graph.blocks, times=_times(times_us),
        weight_bytes=stages.weight_bytes(0),
        kv_bytes=2 * description.kv_chunk.nbytes * (1 + graph.history_slots),
        activation_bytes=description.hidden.nbytes)
    return Profile(
        model=args.model, device=device_label(device), dtype=description.dtype, source='measured',
        graph=graph, window_tokens=(1 + graph.history_slots) * description.tokens,
        groups=(group,), hop_bytes=description.hidden.nbytes,
        workspace_bytes=torch.cuda.max_memory_reserved(device) - torch.cuda.memory_allocated(device)
        if device.startswith('cuda') else 0)


def device_label(device: str) -> str:
    """What a profile calls the device it was made on."""
    if device.startswith('cuda'):
        return described_name(torch.cuda.get_device_name(device))
    return f'cpu-{torch.get_num_threads()}'


def remarks(device: str) -> list[str]:
    """What NVML says against times that were measured on a torch device, a sentence each."""
    if not device.startswith('cuda'):
        return []
    try:
        with Gpus() as gpus:
            return [f'these times are not those of a sound GPU: {sentence}'
                    for sentence in unfit(gpus.health())]
    except InputError as error:
        return [f'whether the GPU is sound is not known: {error}']


def disturbed(times: BatchTimes) -> list[str]:
    """A sentence where some calls took so long that the mean is far above the median."""
    ratio, batch = max((mean / p50, batch) for batch, (mean, p50) in enumerate(
        zip(times.mean_us, times.p50_us, strict=True), 1))
    if ratio < _DISTURBED:
        return []
    return [f'batch {batch}: the mean is {ratio:.2g} times the median, so something else was busy '
            'on this machine; measure again when it is idle']


def _batch_us(stages: LoneStages, args: argparse.Namespace, batch: int) -> list[float]:
    """Times of one batch size [us], of all measured blocks."""
    rows = [Row(stream, stages.full, 0) for stream in range(batch)]
    times: list[float] = []
    for block in range(args.blocks):
        for _ in range(_WARM_UPS):
            _call_us(stages, block, rows)
        spent_us = 0.0
        for _ in range(args.repeats):
            times.append(_call_us(stages, block, rows))
            spent_us += times[-1]
            if spent_us > args.seconds * 1e6:
                break
    return times


def _call_us(stages: LoneStages, block: int, rows: Sequence[Row]) -> float:
    start_ns = time.perf_counter_ns()
    stages.run(block, rows)
    stages.synchronise()
    return (time.perf_counter_ns() - start_ns) / 1e3


def _times(times_us: Sequence[Sequence[float]]) -> BatchTimes:
    """Mean, p50 and p99 by batch, never falling as the batch grows."""
    def rising(values: Sequence[float]) -> tuple[int, ...]:
        return tuple(int(value) for value in np.maximum.accumulate(np.maximum(np.rint(values), 1)))

    return BatchTimes(rising([float(np.mean(each)) for each in times_us]),
                      rising([float(np.quantile(each, 0.5)) for each in times_us]),
                      rising([float(np.quantile(each, 0.99)) for each in times_us]))
