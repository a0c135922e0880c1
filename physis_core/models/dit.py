"""The `dit` model: a small causal diffusion transformer with random weights, in any shape.

Benchmarks and tests run it where a trained model would only be slow: every size of the stage
graph is an option.  A chunk is ``tokens`` control points of ``channels`` joints.  Modulation, after
"Scalable Diffusion Models with Transformers" (DiT), depends on (step, block) alone, so it is a
table; at one step it folds into the layer norm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from physis_core.errors import InputError
from physis_core.graph import KVMode, StageGraph
from physis_core.models.kit.options import read_options
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.units import OutputSemantics

CONTROL_PERIOD_S = 0.02
_OUTSIDE_BLOCKS = 0  # seeds: 0 for embedding and head, 1 + block for a block


@dataclass(frozen=True)
class DitOptions:
    """Options of the `dit` model.

    Attributes:
        dim: width of the hidden state.
        blocks: L, transformer blocks.
        steps: D, denoising steps.
        tokens: N, tokens of a chunk; each is one control point.
        heads: attention heads; they divide ``dim`` into even parts.
        ffn: width of the feed-forward layer, in units of ``dim``.
        window: earlier chunks that a task reads.
        sinks: first chunks that stay visible for ever.
        kv_mode: a :class:`~physis_core.graph.KVMode`.
        latents: latents per chunk; they divide ``tokens``.
        channels: joints of a control point.
        observed: numbers in an observation.
        prompt: numbers in a prompt (0: the model takes none).
        late_binding: every step reads the newest observation.
        renoise: every step but the last ends with fresh noise.
        seed: of the random weights.
    """

    dim: int = 128
    blocks: int = 8
    steps: int = 4
    tokens: int = 5
    heads: int = 4
    ffn: int = 4
    window: int = 4
    sinks: int = 0
    kv_mode: str = KVMode.SAME_STEP.value
    latents: int = 1
    channels: int = 6
    observed: int = 6
    prompt: int = 0
    late_binding: bool = False
    renoise: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ('dim', 'tokens', 'heads', 'ffn', 'latents', 'channels', 'observed'):
            if getattr(self, name) < 1:
                raise InputError(f'option `{name}` of model `dit` is {getattr(self, name)}; '
                                 'the least is 1')
        if self.dim % (2 * self.heads):
            raise InputError(f'dim {self.dim} does not divide into {self.heads} heads of even '
                             'width; make dim a multiple of 2 * heads')
        if self.tokens % self.latents:
            raise InputError(f'{self.tokens} tokens do not divide into {self.latents} latents; '
                             'make tokens a multiple of latents')
        if self.kv_mode not in {mode.value for mode in KVMode}:
            raise InputError(f'kv_mode `{self.kv_mode}` is not known; choose one of '
                             f'{", ".join(mode.value for mode in KVMode)}')


def describe(options: Mapping[str, Any]) -> ModelDescription:
    """The model's description; see :class:`DitOptions`."""
    shape = read_options(DitOptions, options, 'dit')
    latent = TensorSpec((shape.tokens, shape.channels))
    return ModelDescription(
        name='dit',
        graph=StageGraph(shape.steps, shape.blocks, KVMode(shape.kv_mode),
                         window_chunks=shape.window, sink_chunks=shape.sinks),
        tokens=shape.tokens,
        dim=shape.dim,
        kv_heads=shape.heads,
        head_dim=shape.dim // shape.heads,
        latent=latent,
        condition=TensorSpec((shape.observed + 1,)),
        observation={'state': TensorSpec((shape.observed,))},
        outputs={'positions': latent},
        semantics=OutputSemantics(
            shape.latents, control_points_per_latent=shape.tokens / shape.latents,
            control_period_s=CONTROL_PERIOD_S),
        prompt={'prompt': TensorSpec((shape.prompt,))} if shape.prompt else {},
        renoise=shape.renoise,
        late_binding=shape.late_binding,
    )


def build(options: Mapping[str, Any], blocks: Collection[int] | None = None) -> Dit:
    """The model with the weights of ``blocks`` (None: all), of embedding and of head."""
    return Dit(options, blocks)


class Dit:
    """The stages of `dit`; see :class:`~physis_core.models.protocol.StageModel`."""

    def __init__(self, options: Mapping[str, Any], blocks: Collection[int] | None = None) -> None:
        self.description = describe(options)
        shape = read_options(DitOptions, options, 'dit')
        held = range(shape.blocks) if blocks is None else sorted(blocks)
        self._blocks = {block: _Block(shape, self.description.graph, block) for block in held}
        draw = _Weights(shape.seed, _OUTSIDE_BLOCKS)
        self._latent_in = draw.linear(shape.channels, shape.dim)
        self._condition_in = draw.linear(shape.observed + 1, shape.dim)
        self._token = draw.normal(shape.tokens, shape.dim)
        self._latent_out = draw.linear(shape.dim, shape.channels)
        levels = torch.linspace(1.0, 0.0, shape.steps + 1)
        self._next_level = levels[1:, None, None]
        self._kept = (levels[1:] / levels[:-1])[:, None, None]

    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> Tensor:
        """Condition ``[observed + 1]``: the state, then the lead [s]."""
        state = np.asarray(observation['state'], np.float32)
        return torch.from_numpy(np.append(state, np.float32(lead_s)))

    def context(self, prompt: Mapping[str, np.ndarray]) -> dict[int, Tensor]:
        """What the prompt adds to every token, ``[1, dim]`` per block; empty without a prompt."""
        if not self.description.prompt:
            return {}
        words = torch.from_numpy(np.asarray(prompt['prompt'], np.float32))
        return {block: functional.linear(words[None], weights.prompt_in)
                for block, weights in self._blocks.items()}

    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """Hidden states ``[B, tokens, dim]`` of latents ``[B, tokens, channels]``."""
        condition = functional.linear(conditions, *self._condition_in).unsqueeze(1)
        return functional.linear(latents, *self._latent_in).add_(self._token).add_(condition)

    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block, ``[B, tokens, dim]`` to the same shape."""
        if self.description.prompt:
            hidden = hidden + torch.stack([context[block] for context in contexts])
        return self._blocks[block].forward(hidden, steps.tolist(), history)

    def step_update(self, hidden: Tensor, latents: Tensor, conditions: Tensor,
                    noises: Tensor | None, steps: Tensor) -> Tensor:
        """Latents at the next level: fresh noise with ``renoise``, else an Euler step."""
        clean = functional.linear(hidden, *self._latent_out).tanh_()
        if noises is not None:
            return torch.lerp(clean, noises, self._next_level[steps])
        return torch.lerp(clean, latents, self._kept[steps])

    def decode(self, latent: Tensor, condition: Tensor) -> dict[str, np.ndarray]:
        """``positions`` ``[tokens, channels]``, one control point every 20 ms."""
        return {'positions': latent.cpu().numpy().copy()}


class _Block:
    """The weights of one block."""

    def __init__(self, shape: DitOptions, graph: StageGraph, block: int) -> None:
        draw = _Weights(shape.seed, 1 + block)
        dim, wide = shape.dim, shape.ffn * shape.dim
        self._heads = (3, shape.heads, dim // shape.heads)
        self._width = (dim,)
        self._qkv = draw.linear(dim, 3 * dim)
        self._out = draw.linear(dim, dim)
        self._up = draw.linear(dim, wide)
        self._down = draw.linear(wide, dim)
        self.prompt_in = draw.normal(dim, max(shape.prompt, 1)) * 0.1
        # scale, shift, gate of attention, then of the feed-forward layer: [passes, 6, 1, dim]
        offset = torch.tensor([1.0, 0.0, 0.3]).repeat(2)[:, None, None]
        self._modulation = offset + 0.1 * draw.normal(graph.passes, 6, 1, dim)
        self._folded = [tuple(step.flatten(1).unbind()) for step in self._modulation]
        self._turns = _rotations(1 + graph.history_slots, shape.tokens, dim // shape.heads)

    def forward(self, hidden: Tensor, steps: list[int], history: History) -> Tensor:
        if steps.count(steps[0]) == len(steps):
            scale, shift, gate, scale_ffn, shift_ffn, gate_ffn = self._folded[steps[0]]
            inner = functional.layer_norm(hidden, self._width, scale, shift)
            hidden = torch.addcmul(hidden, gate, self._attend(inner, history))
            inner = functional.layer_norm(hidden, self._width, scale_ffn, shift_ffn)
        else:
            scale, shift, gate, scale_ffn, shift_ffn, gate_ffn = self._modulation[steps].unbind(1)
            inner = torch.addcmul(shift, functional.layer_norm(hidden, self._width), scale)
            hidden = torch.addcmul(hidden, gate, self._attend(inner, history))
            inner = torch.addcmul(shift_ffn, functional.layer_norm(hidden, self._width), scale_ffn)
        wide = functional.silu(functional.linear(inner, *self._up), inplace=True)
        return torch.addcmul(hidden, gate_ffn, functional.linear(wide, *self._down))

    def _attend(self, inner: Tensor, history: History) -> Tensor:
        queries, keys, values = functional.linear(inner, *self._qkv).unflatten(
            -1, self._heads).unbind(2)
        all_keys, all_values, mask = history.extend(keys, values)
        turns = self._turns[history.positions].flatten(1, 2)
        tokens = inner.shape[1]
        if mask is not None:
            mask = mask.repeat_interleave(tokens, 1)[:, None, None]
        read = functional.scaled_dot_product_attention(
            _rotated(queries, turns[:, :tokens]).transpose(1, 2),
            _rotated(all_keys, turns).transpose(1, 2), all_values.transpose(1, 2), mask)
        return functional.linear(read.transpose(1, 2).flatten(2), *self._out)


class _Weights:
    """Random weights that depend on the seed and the part alone."""

    def __init__(self, seed: int, part: int) -> None:
        self._numbers = np.random.default_rng((seed, part))

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self._numbers.standard_normal(shape, np.float32))

    def linear(self, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        """Weight ``[outputs, inputs]`` that keeps the variance, and bias ``[outputs]``."""
        return self.normal(outputs, inputs) * inputs ** -0.5, 0.1 * self.normal(outputs)


def _rotations(positions: int, tokens: int, head_dim: int) -> Tensor:
    """Rotary factors, complex ``[positions, tokens, 1, head_dim / 2]``."""
    frequencies = 100.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(positions * tokens)[:, None, None] * frequencies / tokens
    return torch.polar(torch.ones_like(angles), angles).unflatten(0, (positions, tokens))


def _rotated(vectors: Tensor, turns: Tensor) -> Tensor:
    """Rotate ``[B, tokens, heads, head_dim]`` by ``[B, tokens, 1, head_dim / 2]``."""
    pairs = torch.view_as_complex(vectors.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)
