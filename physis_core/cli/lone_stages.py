"""A model on one device, called stage by stage with a full window: what benches measure."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from physis_core.errors import InputError
from physis_core.models.registry import ModelSpec, build
from physis_core.runtime.attention_backend import (
    AttentionChoice,
    candidates,
    fastest,
    waiter_for,
)
from physis_core.runtime.cuda_graphs import CudaRecorder, GraphedBlocks
from physis_core.runtime.executor import RunBlock
from physis_core.runtime.kv_pool import KvPool, Row

_PROBE_BYTES = {'cpu': 256 << 20, 'cuda': 1 << 30}  # beyond caches, and long beside a launch
_PROBE_WIDTH = {'cpu': 1024, 'cuda': 8192}


class LoneStages:
    """Some blocks of a model, with the KV of ``streams`` streams whose windows are full.

    Args:
        spec: the model.
        blocks: the blocks to hold.
        steps: the steps whose KV is kept.
        streams: how many streams.
        device: a torch device.
        max_batch: largest batch to record as a CUDA graph, as the engine does; 0: none.

    Attributes:
        attention: what attends, and what else was tried: measured on a GPU alone, as in the engine.
        synchronise: waits until the device has done what it was told.
        graphs: CUDA graphs that were recorded.
        refusal: why none could be; empty: some were, or none was asked for.
    """

    def __init__(self, spec: ModelSpec, blocks: Sequence[int], steps: Sequence[int], streams: int,
                 device: str, max_batch: int = 0) -> None:
        self.device = device
        self.synchronise = waiter_for(device)
        with torch.device(device):
            self.model = build(spec, blocks)
            self.description = description = self.model.description
            graph = description.graph
            stages = [(step, block) for step in steps for block in blocks]
            kept = {(graph.kv_source_step(step), block) for step, block in stages}
            self._pool = KvPool(graph, description.kv_chunk, len(kept) * streams, device)
            for stream in range(streams):
                self._pool.open(stream, stages)
            numbers = np.random.default_rng(0)
            prompt = {name: numbers.standard_normal(spec.shape).astype(np.float32)
                      for name, spec in description.prompt.items()}
            self._context = self.model.context(prompt)
            self._hidden = torch.randn(
                description.hidden.shape, dtype=description.hidden.torch_dtype)
        self.full = graph.history_slots + graph.window_chunks  # a chunk whose window is full
        self.attention = AttentionChoice()
        self.graphs = 0
        self.refusal = ''
        self._run_block: RunBlock = self.model.block
        if device.startswith('cuda') and max_batch:
            graphed = GraphedBlocks(self.model, self._pool, device, CudaRecorder(device))
            graphed.prepare(blocks, max_batch)
            self.attention, self.refusal = graphed.attention, graphed.refusal
            self.graphs = len(graphed.recorded)
            self._run_block = graphed.run

    def attention_times(self, rows: Sequence[Row]) -> AttentionChoice:
        """How fast a block is with each kernel that can attend here; eager."""
        return fastest(lambda: self.run(0, rows, eager=True),
                       candidates(self.description, len(rows)), self.synchronise)

    @torch.inference_mode()
    def run(self, block: int, rows: Sequence[Row], hidden: Tensor | None = None, *,
            keep: bool = False, eager: bool = False) -> Tensor:
        """One block on rows of hidden states ``[B, tokens, dim]`` (None: random ones).

        ``keep``: leave the KV in the histories; ``eager``: no CUDA graph.
        """
        if hidden is None:
            hidden = self._hidden.expand(len(rows), -1, -1)
        steps = torch.tensor([row.step for row in rows], device=self.device)
        history = self._pool.history(block, rows)
        run_block = self.model.block if eager else self._run_block
        hidden = run_block(block, hidden, steps, history, [self._context] * len(rows))
        if keep and history.keys is not None and history.values is not None:
            for index, row in enumerate(rows):
                self._pool.write(row, block, history.keys[index], history.values[index])
        return hidden

    def times_s(self, block: int, rows: Sequence[Row], repeats: int, budget_s: float
                ) -> list[float]:
        """Times of a block [s]: ``repeats`` of them, fewer where they would take too long."""
        self.run(block, rows)
        self.synchronise()
        times: list[float] = []
        while len(times) < repeats and sum(times) < budget_s:
            start_s = time.perf_counter()
            self.run(block, rows)
            self.synchronise()
            times.append(time.perf_counter() - start_s)
        return times

    def flops(self, block: int, row: Row) -> int:
        """Floating-point operations of a block on one row."""
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        with FlopCounterMode(display=False, custom_mapping={on_cpu: _attention_flops}) as counter:
            self.run(block, [row], eager=True)
        return counter.get_total_flops()

    def bytes_read(self, block: int, rows: int) -> int:
        """Bytes of weights, history and hidden states: the least that a block moves."""
        kv = 2 * self.description.kv_chunk.nbytes * (1 + self.description.graph.history_slots)
        return self.weight_bytes(block) + rows * (kv + 2 * self.description.hidden.nbytes)

    def weight_bytes(self, block: int) -> int:
        """Bytes of a block's parameters; 0 where the model is no torch module and has none."""
        model: object = self.model
        modules = [model] if isinstance(model, nn.Module) else [
            part for part in vars(model).values() if isinstance(part, nn.Module)]
        own = re.compile(rf'(transformer_)?blocks\.{block}\.')
        return sum(parameter.nbytes for module in modules
                   for name, parameter in module.named_parameters() if own.match(name))


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int],
                     *_: Any, **__: Any) -> int:
    """Scores and read of attention over shapes ``[B, heads, tokens, head_dim]``."""
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


def pick_device(name: str) -> str:
    """The device of that name, or the best there is for `auto`.

    Raises:
        InputError: torch cannot use it.
    """
    if name == 'auto':
        return 'cuda' if torch.cuda.is_available() else 'cpu'
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f'device `{name}` cannot be used ({str(error).splitlines()[0]}); '
                         'choose cpu, cuda or cuda:N') from error
    return name


def roofline(device: str, dtype: torch.dtype) -> Mapping[str, float]:
    """What this device reaches: matrix products [FLOP/s] and memory copies [byte/s]."""
    kind = device.partition(':')[0]
    width, nbytes = _PROBE_WIDTH.get(kind, 1024), _PROBE_BYTES.get(kind, 256 << 20)
    left = torch.randn(width, width, device=device).to(dtype)
    product_s = _best_s(lambda: left @ left, device)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device)
    return {'flops_per_s': 2 * width ** 3 / product_s, 'bytes_per_s': 2 * nbytes / copy_s}


def _best_s(action: Any, device: str) -> float:
    best_s, synchronise = float('inf'), waiter_for(device)
    for _ in range(5):
        start_s = time.perf_counter()
        action()
        synchronise()
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s
