"""The plain sequential loop that every plan must agree with.

No queues, no pools, no devices: chunk after chunk, step after step, block after block, with the
history of each stage in a Python dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from physis_core.models.protocol import ModelDescription, StageModel, chunk_noise
from physis_core.runtime.stream import FIRST_EPOCH

Observation = Mapping[str, np.ndarray]


class SequentialOracle:
    """One stream of a model, run chunk by chunk.

    Args:
        model: all of its blocks.
        seed: of the noise, as in ``StreamOptions``.
        epoch: of the noise; by default that of a stream which was not reset, in a fresh slot.
        prompt: the model's prompt inputs by name.
    """

    def __init__(self, model: StageModel, seed: int, epoch: int = FIRST_EPOCH,
                 prompt: Mapping[str, np.ndarray] | None = None) -> None:
        self._model = model
        self._description = model.description
        self._seed = seed
        self._epoch = epoch
        self._context = model.context(prompt or {})
        self._kv: dict[tuple[int, int], dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._chunk = 0

    @torch.inference_mode()
    def next_chunk(self, observations: Sequence[Observation], leads_s: Sequence[float]
                   ) -> dict[str, np.ndarray]:
        """The next chunk's outputs.

        Args:
            observations: what each denoising step reads: one for all, or ``graph.steps`` of
                them for a model with late binding.
            leads_s: time from the capture of each of them to the chunk's effect [s].
        """
        graph = self._description.graph
        chunk = self._chunk
        latent = self._noise(chunk, 0)[None]
        outputs: dict[str, np.ndarray] = {}
        for step in range(graph.passes):
            if step == 0 or (self._description.late_binding and step < graph.steps):
                seen = min(step, len(observations) - 1)
                condition = self._model.encode(observations[seen], leads_s[seen])[None]
            steps = torch.tensor([step])
            hidden = self._model.embed(latent, condition, steps)
            for block in range(graph.blocks):
                history = _ListHistory(self._description, self._kv, chunk, step, block)
                hidden = self._model.block(block, hidden, steps, history, [self._context])
                history.keep()
            if step < graph.steps:
                noises = self._noise(chunk, step + 1)[None] if self._description.renoise else None
                latent = self._model.step_update(hidden, latent, condition, noises, steps)
            if step == graph.steps - 1:
                outputs = self._model.decode(latent[0], condition[0])
        self._chunk += 1
        return outputs

    def _noise(self, chunk: int, step: int) -> torch.Tensor:
        return chunk_noise(self._description.latent, self._seed, self._epoch, chunk, step)


class _ListHistory:
    """History of one row, concatenated from a dictionary in slot order."""

    def __init__(self, description: ModelDescription, kv: dict[Any, Any], chunk: int, step: int,
                 block: int) -> None:
        graph = description.graph
        self._own = kv.setdefault((step, block), {})
        self._source = kv.setdefault((graph.kv_source_step(step), block), {})
        self._graph = graph
        self._chunk = chunk
        self._earlier = graph.history(chunk) if graph.window_chunks else []
        self.positions = torch.tensor(
            [graph.positions(chunk)] if graph.window_chunks else [[0]])

    def extend(self, keys: torch.Tensor, values: torch.Tensor
               ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """See :class:`~physis_core.models.protocol.History`."""
        self._written = (keys, values)
        pairs = [(keys, values)] + [self._source[chunk] for chunk in self._earlier]
        return torch.cat([k for k, _ in pairs], 1), torch.cat([v for _, v in pairs], 1), None

    def keep(self) -> None:
        """Store what this stage wrote and forget what no later chunk can see."""
        if not self._graph.window_chunks:
            return
        self._own[self._chunk] = self._written
        oldest = self._chunk - self._graph.window_chunks
        for chunk in [c for c in self._own if self._graph.sink_chunks <= c < oldest]:
            del self._own[chunk]
