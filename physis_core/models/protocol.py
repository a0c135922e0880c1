"""The interface between models and everything that runs them.

A model is described by a :class:`ModelDescription` (shapes and graph; no weights needed) and
computes through a :class:`StageModel`.  A stage ``(step, block)`` is run as::

    if block == 0:      hidden = model.embed(latents, conditions, steps)
    hidden = model.block(block, hidden, steps, history, contexts)
    if block == L - 1 and step < D:
                        latents = model.step_update(hidden, latents, conditions, noises, steps)

B rows of *one* block, from any steps, chunks and streams, may share a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from physis_core.graph import StageGraph
from physis_core.units import OutputSemantics


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype (a numpy/torch name such as ``float32``) of one tensor."""

    shape: tuple[int, ...]
    dtype: str = 'float32'

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype of that name."""
        return getattr(torch, self.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.torch_dtype.itemsize


@dataclass(frozen=True)
class ModelDescription:
    """Everything planning, buffers and links must know of a model.

    Attributes:
        name: the name it is registered under.
        graph: its stages and KV mode.
        tokens: N, tokens of one chunk in a block.
        dim: width of the hidden state; a hop carries ``[tokens, dim]`` of ``dtype``.
        kv_heads: heads of the keys and values kept as history.
        head_dim: width of one head.
        dtype: dtype of hidden states and KV.
        latent: one chunk's latent, without batch axis.
        condition: what :meth:`StageModel.encode` returns, without batch axis.
        observation: the named inputs that ``encode`` takes.  A text, here or in ``prompt``, is
            uint8 ``[bytes]``: UTF-8, filled up with zeros.
        outputs: the named results of :meth:`StageModel.decode`.
        semantics: what a chunk means outside.
        prompt: the named inputs that :meth:`StageModel.context` takes; empty: no prompt.
        renoise: whether ``step_update`` wants fresh noise at each step.
        late_binding: whether each step reads the newest observation, instead of the one that was
            newest when the chunk started.
        kv_tokens: how many of a chunk's tokens later chunks see (None: all).
    """

    name: str
    graph: StageGraph
    tokens: int
    dim: int
    kv_heads: int
    head_dim: int
    latent: TensorSpec
    condition: TensorSpec
    observation: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    semantics: OutputSemantics = field(default_factory=OutputSemantics)
    dtype: str = 'float32'
    prompt: Mapping[str, TensorSpec] = field(default_factory=dict)
    renoise: bool = False
    late_binding: bool = False
    kv_tokens: int | None = None

    @property
    def hidden(self) -> TensorSpec:
        """The hidden state of one chunk."""
        return TensorSpec((self.tokens, self.dim), self.dtype)

    @property
    def kv_chunk(self) -> TensorSpec:
        """The keys (or the values) of one chunk at one stage."""
        tokens = self.tokens if self.kv_tokens is None else self.kv_tokens
        return TensorSpec((tokens, self.kv_heads, self.head_dim), self.dtype)


class History(Protocol):
    """The earlier chunks' KV of a batch, as one block call sees it.

    Keys are kept *without* the rotary position of their chunk: the model rotates what it attends
    to, by positions that are relative to the window.  So nothing grows with the number of chunks,
    and a sink can stand at any distance.
    """

    positions: torch.Tensor
    """int64 ``[B, 1 + H]``: position, in chunks, of the row's own chunk, then of its history."""

    def extend(self, keys: torch.Tensor, values: torch.Tensor
               ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Add this chunk's KV and return everything to attend to.

        Args:
            keys: ``[B, kv_tokens, kv_heads, head_dim]``, not rotated by the chunk's position.
            values: the same shape.

        Returns:
            keys and values ``[B, (1 + H) * kv_tokens, kv_heads, head_dim]``, the own chunk first,
            and a mask bool ``[B, 1 + H]`` that is True where a chunk is there (None: everywhere).
            They are views of memory that the next call reuses.
        """
        ...


class StageModel(Protocol):
    """What the stages of a model compute.  B is the batch; every row may be at another step."""

    description: ModelDescription

    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> torch.Tensor:
        """Condition of a chunk, ``description.condition``.

        Args:
            observation: arrays by ``description.observation``.
            lead_s: time from the capture of the observation to the moment at which the chunk
                takes effect [s].
        """
        ...

    def context(self, prompt: Mapping[str, np.ndarray]) -> Any:
        """What depends on a stream's prompt alone, for the blocks held; computed once a stream.

        Any value; to run as CUDA graphs it is, or is by block, a tensor, ``None``, or nested tuples
        of them.
        """
        ...

    def embed(self, latents: torch.Tensor, conditions: torch.Tensor, steps: torch.Tensor
              ) -> torch.Tensor:
        """Hidden states ``[B, tokens, dim]`` of latents ``[B, *latent]``; ``steps`` int64 [B]."""
        ...

    def block(self, block: int, hidden: torch.Tensor, steps: torch.Tensor, history: History,
              contexts: Sequence[Any]) -> torch.Tensor:
        """One transformer block: ``[B, tokens, dim]`` to the same shape.

        Calls ``history.extend`` exactly once.
        """
        ...

    def step_update(self, hidden: torch.Tensor, latents: torch.Tensor, conditions: torch.Tensor,
                    noises: torch.Tensor | None, steps: torch.Tensor) -> torch.Tensor:
        """Latents at the next, cleaner step; ``noises`` ``[B, *latent]`` iff ``renoise``."""
        ...

    def decode(self, latent: torch.Tensor, condition: torch.Tensor) -> dict[str, np.ndarray]:
        """Outputs (``description.outputs``) of one finished latent (no batch axis)."""
        ...


def lead_s(due_ns: int, capture_ns: int) -> float:
    """What :meth:`StageModel.encode` is told: from a capture to the planned effect [s].

    A chunk that starts after it was due takes effect at once; it does not end its stream.
    """
    return max(0, due_ns - capture_ns) / 1e9


def chunk_noise(latent: TensorSpec, seed: int, epoch: int, chunk: int, step: int) -> torch.Tensor:
    """Standard normal noise of one chunk at one step, ``latent.shape``.

    A function of its arguments only, whoever calls it wherever: that is what makes a plain
    sequential loop the oracle of every plan.
    """
    words = np.random.SeedSequence((seed, epoch, chunk, step)).generate_state(2, np.uint64)
    generator = torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))
    return torch.randn(latent.shape, generator=generator, dtype=torch.float32).to(
        latent.torch_dtype)
