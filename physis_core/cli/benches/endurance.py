"""One stream that does not end: memory, outputs and positions after many thousand chunks.

Its model, offered by this module as any own model is, is a small `dit` that notes the highest
position it was given, on the device that decodes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.cli.plan_runs import sensor
from physis_core.cli.progress import progress
from physis_core.cli.report import print_json, print_table
from physis_core.errors import InputError, StreamError
from physis_core.models import dit
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.models.registry import ModelSpec
from physis_core.planning.modes import streamdiffusionv2
from physis_core.runtime.engine import Engine, FinishedChunk, StreamOptions

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
    options = {'dim': 32, 'heads': 2, 'tokens': 4, 'steps': 2, 'blocks': 2, 'window': 4, 'sinks': 1,
               'renoise': True}
    spec, graph = ModelSpec(__name__, options), describe(options).graph
    plan = streamdiffusionv2(graph, args.devices)
    memory_mb: list[list[float]] = []
    means, deviations, highest = [], [], 0
    start_s = time.monotonic()
    with Engine(spec, plan) as engine:
        stream = engine.open_stream(StreamOptions(period_ns=0, queue_chunks=64))
        with sensor(spec, [stream]):
            for _ in progress(range(_PARTS), 'endurance', args.json):
                chunks = [_outputs(stream.next_chunk(_TIMEOUT_S))
                          for _ in range(args.chunks // _PARTS)]
                outputs = np.stack([chunk['positions'] for chunk in chunks])
                highest = int(chunks[-1]['highest_position'][0])
                means.append(float(outputs.mean()))
                deviations.append(float(outputs.std()))
                memory_mb.append([_private_mb(pid) for pid in (os.getpid(), *engine.worker_pids)])
    _report({
        'chunks': args.chunks, 'devices': args.devices,
        'wall_s': round(time.monotonic() - start_s, 1),
        'worker_memory_growth_mb': round(sum(memory_mb[-1][1:]) - sum(memory_mb[1][1:]), 2),
        'worker_memory_mb': round(sum(memory_mb[-1][1:]), 1),
        'engine_memory_growth_mb': round(memory_mb[-1][0] - memory_mb[1][0], 2),
        'engine_memory_mb': round(memory_mb[-1][0], 1),
        'output_mean_first': round(means[1], 4), 'output_mean_last': round(means[-1], 4),
        'output_mean_spread': round(max(means[1:]) - min(means[1:]), 5),
        'output_std_first': round(deviations[1], 4), 'output_std_last': round(deviations[-1], 4),
        'output_std_spread': round(max(deviations[1:]) - min(deviations[1:]), 5),
        'highest_position': highest,
        'positions_limit': graph.history_slots,
    }, args.json)
    return 0


def describe(options: Mapping[str, Any]) -> ModelDescription:
    """That of `dit`, with one more output."""
    described = dit.describe(options)
    return replace(described, outputs={**described.outputs, 'highest_position': TensorSpec((1,))})


def build(options: Mapping[str, Any], blocks: Collection[int] | None = None) -> _Watched:
    """The model with the weights of ``blocks``."""
    return _Watched(options, blocks)


class _Watched(dit.Dit):
    """Notes the highest position that its blocks were given."""

    def __init__(self, options: Mapping[str, Any], blocks: Collection[int] | None = None) -> None:
        super().__init__(options, blocks)
        self.description = describe(options)
        self._highest = 0

    def block(self, block: int, hidden: torch.Tensor, steps: torch.Tensor, history: History,
              contexts: Sequence[Any]) -> torch.Tensor:
        """See :class:`~physis_core.models.dit.Dit`."""
        self._highest = max(self._highest, int(history.positions.max()))
        return super().block(block, hidden, steps, history, contexts)

    def decode(self, latent: torch.Tensor, condition: torch.Tensor) -> dict[str, np.ndarray]:
        """See :class:`~physis_core.models.dit.Dit`."""
        return {**super().decode(latent, condition),
                'highest_position': np.array([self._highest], np.float32)}


def _outputs(chunk: FinishedChunk | None) -> Mapping[str, np.ndarray]:
    if chunk is None:
        raise StreamError(f'no chunk came within {_TIMEOUT_S:g} s')
    return chunk.outputs


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
