"""Every backbone family in a size that takes no time, and what tests feed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from physis_core.graph import StageGraph
from physis_core.models.protocol import ModelDescription, StageModel
from physis_core.models.registry import ModelSpec, build

torch.set_num_threads(1)

TEXT_TOKENS = 5
_VIDEO = {'heads': 2, 'head_dim': 32, 'blocks': 2, 'ffn': 96, 'channels': 4, 'height': 4,
          'width': 6, 'latents': 2, 'window': 3, 'text_tokens': TEXT_TOKENS, 'text_dim': 24}
_WAN = {**_VIDEO, 'freq_dim': 32}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    'wan': _WAN,
    # A low ratio of frequencies: at the published one, float32 angles are off by 1e-3.
    'ltx': {**_VIDEO, 'rope_theta': 8.0},
    'h3': {**_VIDEO, 'dim': 48, 'freq_dim': 32, 'time_inner': 40, 'time_dim': 36, 'rope_freqs': 4},
    'lingbot': {**_WAN, 'steps': 5, 'action_steps': 3, 'actions_per_latent': 3, 'action_dim': 4},
    'dreamzero': {**_WAN, 'actions': 4, 'action_dim': 3, 'state_dim': 5, 'inner': 20},
}


def small(family: str, **options: Any) -> ModelSpec:
    """A family in its small size."""
    return ModelSpec(family, {**FAMILIES[family], **options})


def text(model: StageModel, seed: int = 0) -> Mapping[str, np.ndarray]:
    """A random prompt of a model."""
    numbers = np.random.default_rng((3, seed))
    return {name: numbers.standard_normal(spec.shape).astype(np.float32)
            for name, spec in model.description.prompt.items()}


def noise(description: ModelDescription, *key: int) -> Tensor:
    """A random latent that depends on the key alone."""
    numbers = np.random.default_rng(key)
    return torch.from_numpy(numbers.standard_normal(description.latent.shape).astype(np.float32))


def condition(description: ModelDescription, chunk: int) -> Tensor:
    """A random condition of a chunk."""
    numbers = np.random.default_rng((5, chunk))
    return torch.from_numpy(
        numbers.standard_normal(description.condition.shape).astype(np.float32))


class NoHistory:
    """One chunk and nothing before it."""

    def __init__(self, rows: int = 1) -> None:
        self.positions = torch.zeros(rows, 1, dtype=torch.int64)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, None]:
        return keys, values, None


@dataclass
class KeptChunks:
    """All chunks' keys and values of one stage in order of time, with nothing forgotten.

    What the window hides is hidden by the mask; ``position`` places chunk ``j`` for chunk ``c``.
    """

    chunk: int
    kept: list[tuple[Tensor, Tensor]]
    visible: Callable[[int, int], bool]
    position: Callable[[int, int], int]

    @property
    def positions(self) -> Tensor:
        own = self.position(self.chunk, self.chunk)
        earlier = [self.position(self.chunk, other) if self.visible(self.chunk, other) else 0
                   for other in range(self.chunk)]
        return torch.tensor([[own, *earlier]])

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mask = [True, *(self.visible(self.chunk, other) for other in range(self.chunk))]
        pairs = [(keys, values), *self.kept]
        self.written = keys.clone(), values.clone()
        return (torch.cat([keys for keys, _ in pairs], 1),
                torch.cat([values for _, values in pairs], 1), torch.tensor([mask]))


class SlotHistory:
    """The history as the graph defines it: chunks in slot order, positions in the window."""

    def __init__(self, graph: StageGraph, chunk: int, kept: Mapping[int, tuple[Tensor, Tensor]]
                 ) -> None:
        self.positions = torch.tensor([graph.positions(chunk) if graph.window_chunks else [0]])
        self._earlier = [kept[other] for other in graph.history(chunk)] if (
            graph.window_chunks) else []

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, None]:
        pairs = [(keys, values), *self._earlier]
        self.written = keys.clone(), values.clone()
        return (torch.cat([keys for keys, _ in pairs], 1),
                torch.cat([values for _, values in pairs], 1), None)


class ChunkByChunk:
    """Hidden states of chunks at one step, one chunk after the other.

    Every chunk leaves its keys and values at the step it is run at, whatever the KV mode: what is
    tested here is how a block attends, not which history it is given.
    """

    def __init__(self, model: StageModel, step: int,
                 reference: tuple[Callable[[int, int], bool], Callable[[int, int], int]] | None
                 = None) -> None:
        self._model = model
        self._step = torch.tensor([step])
        self._context = model.context(text(model))
        self._kept: list[dict[int, tuple[Tensor, Tensor]]] = [
            {} for _ in range(model.description.graph.blocks)]
        self._reference = reference
        self._chunk = 0

    def next(self) -> Tensor:
        """Hidden states of the next chunk after the last block, ``[1, tokens, dim]``."""
        description = self._model.description
        latent = noise(description, 1, self._chunk)[None]
        hidden = self._model.embed(latent, condition(description, self._chunk)[None], self._step)
        for block, kept in enumerate(self._kept):
            history: KeptChunks | SlotHistory
            if self._reference:
                history = KeptChunks(self._chunk, list(kept.values()), *self._reference)
            else:
                history = SlotHistory(description.graph, self._chunk, kept)
            hidden = self._model.block(block, hidden, self._step, history, [self._context])
            kept[self._chunk] = history.written
        self._chunk += 1
        return hidden


def model_of(spec: ModelSpec) -> StageModel:
    """The whole model."""
    return build(spec)
