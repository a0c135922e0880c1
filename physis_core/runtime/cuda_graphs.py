"""Blocks as CUDA graphs: one per block and batch size, recorded before the first stream.

A processor needs longer to launch the many small kernels of a block than a GPU to run them.  A
CUDA graph is launched at once.  It repeats the same kernels on the same addresses, so what differs
from call to call is copied into fixed buffers before, and what a replay leaves is copied out after,
before the next replay overwrites it.  All graphs share the buffers and one pool of memory, since
none ever runs beside another.

Only full windows are recorded.  While the window of a stream fills, every chunk has another shape:
these first chunks run eagerly, and so does a batch in which only some windows are full, a batch
that is larger than any recorded, and a model whose block cannot be recorded (one that looks at
values on the CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from physis_core.models.protocol import StageModel
from physis_core.runtime.attention_backend import (
    AttentionChoice,
    candidates,
    fastest,
    waiter_for,
)
from physis_core.runtime.kv_pool import KvPool, PoolHistory

MAX_GRAPHS = 256

Run = Callable[[], None]
Record = Callable[[Run], Run]
"""Records what a function does on fixed addresses and returns what repeats it."""


class CudaRecorder:
    """Records CUDA graphs on a side stream, as torch's notes on CUDA graphs ask for."""

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Run once, so that kernels are chosen and workspaces allocated, then record.

        Raises:
            RuntimeError: ``run`` does what a graph cannot hold, such as waiting for a value.
        """
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        return graph.replay


class GraphedBlocks:
    """Runs the blocks of a model, as graphs where there is one.

    A stream's context is, or is by block, ``None``, a tensor, or nested tuples of tensors: that is
    what can be copied into fixed buffers.

    Attributes:
        attention: the kernel that attends in graphs.
        refusal: why nothing could be recorded; empty: something was.
    """

    def __init__(self, model: StageModel, pool: KvPool, device: str, record: Record) -> None:
        """``pool`` holds the histories, ``device`` is where model and pool are."""
        self._model = model
        self._description = model.description
        self._pool = pool
        self._device = device
        self._record = record
        self._replays: dict[tuple[int, int], Run] = {}
        self.attention = AttentionChoice()
        self.refusal = ''

    @property
    def recorded(self) -> list[tuple[int, int]]:
        """Every (block, batch size) that there is a graph of."""
        return sorted(self._replays)

    # -- before the first stream -------------------------------------------------------------------

    @torch.inference_mode()
    def prepare(self, blocks: Sequence[int], max_batch: int) -> None:
        """Choose the kernel that attends, and record every block for batches up to a size.

        The smallest batches come first, until there are :data:`MAX_GRAPHS`.
        """
        if not blocks:
            return
        try:
            self._allocate(blocks[0], max_batch)
            self.attention = fastest(
                lambda: self._body(blocks[0], max_batch), candidates(self._description, max_batch),
                waiter_for(self._device))
            for rows in range(1, max_batch + 1):
                for block in blocks[:MAX_GRAPHS - len(self._replays)]:
                    self._replays[block, rows] = self._recorded(block, rows)
        except RuntimeError as error:
            self._replays.clear()
            self.refusal = str(error).splitlines()[0]

    def _recorded(self, block: int, rows: int) -> Run:
        with self.attention.applied():
            return self._record(lambda: self._body(block, rows))

    def _allocate(self, block: int, rows: int) -> None:
        """Make the fixed buffers, with contents that a block can run on."""
        description, graph = self._description, self._description.graph
        kv = (rows, *description.kv_chunk.shape)
        dtype, device = description.hidden.torch_dtype, self._device
        full = graph.history_slots + graph.window_chunks  # a chunk with a full window
        numbers = np.random.default_rng(0)
        prompt = {name: numbers.standard_normal(spec.shape).astype(spec.dtype)
                  for name, spec in description.prompt.items()}
        context = self._model.context(prompt)
        self._by_block = isinstance(context, Mapping)
        self._hidden = torch.randn(rows, *description.hidden.shape, dtype=dtype, device=device)
        self._steps = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.tensor([graph.positions(full)] * rows, device=device)
        self._entries = torch.zeros(rows, dtype=torch.int64, device=device)
        self._contexts = [_clone(_part(context, block)) for _ in range(rows)]
        self._result = torch.empty_like(self._hidden)
        self._keys = torch.empty(kv, dtype=dtype, device=device)
        self._values = torch.empty_like(self._keys)

    def _body(self, block: int, rows: int) -> None:
        """What a graph holds: the block, from the fixed buffers to the fixed buffers."""
        history = _FixedHistory(self._pool, self._positions[:rows], self._entries[:rows])
        contexts = [{block: part} if self._by_block else part for part in self._contexts[:rows]]
        hidden = self._model.block(
            block, self._hidden[:rows], self._steps[:rows], history, contexts)
        self._result[:rows].copy_(hidden)
        self._keys[:rows].copy_(history.keys)
        self._values[:rows].copy_(history.values)

    # -- running -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, block: int, hidden: Tensor, steps: Tensor, history: PoolHistory,
            contexts: Sequence[Any]) -> Tensor:
        """What :meth:`StageModel.block` computes; ``history.keys`` and ``values`` are set, too."""
        rows = len(hidden)
        replay = self._replays.get((block, rows))
        if replay is None or not history.full:
            # With the kernel that torch chooses: histories of different length need a mask, which
            # not every kernel takes.
            return self._model.block(block, hidden, steps, history, contexts)
        self._hidden[:rows].copy_(hidden)
        self._steps[:rows].copy_(steps)
        self._positions[:rows].copy_(history.positions)
        if history.entries:
            self._entries[:rows].copy_(self._pool.indices(history.entries))
        for fixed, context in zip(self._contexts, contexts, strict=False):
            _copy(fixed, _part(context, block))
        replay()
        history.keys, history.values = self._keys[:rows].clone(), self._values[:rows].clone()
        return self._result[:rows].clone()


class _FixedHistory:
    """A batch of full windows whose entries and positions lie in fixed buffers."""

    def __init__(self, pool: KvPool, positions: Tensor, entries: Tensor) -> None:
        self.positions = positions
        self._pool = pool
        self._entries = entries

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, None]:
        """See :class:`~physis_core.models.protocol.History`."""
        self.keys, self.values = keys, values
        return (*self._pool.full_windows(self._entries, keys, values), None)


def _part(context: Any, block: int) -> Any:
    """What a block reads of a context."""
    return context.get(block) if isinstance(context, Mapping) else context


def _clone(part: Any) -> Any:
    if part is None:
        return None
    if isinstance(part, Tensor):
        return part.clone()
    if isinstance(part, tuple):
        return tuple(_clone(each) for each in part)
    raise RuntimeError(f'the context of a stream holds a {type(part).__name__}, which cannot be '
                       'copied into a fixed buffer; use tensors, tuples and None')


def _copy(fixed: Any, part: Any) -> None:
    if isinstance(fixed, Tensor):
        fixed.copy_(part)
    elif fixed is not None:
        for target, source in zip(fixed, part, strict=True):
            _copy(target, source)
