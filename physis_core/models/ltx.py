"""The video stream of LTX-2.x as causal stages ("LTX-2: Efficient Joint Audio-Visual Foundation
Model").

Audio and its cross-attention are left out: the video stream of the published model does not read
them when its modalities are isolated.  A block: self-attention, cross-attention to the prompt (from
2.3 on modulated, and gated per head), feed-forward.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.models.family import Family
from physis_core.models.kit.attention import Attention, Prompt, at_steps
from physis_core.models.kit.backbone import Backbone, StreamOptions, cast
from physis_core.models.kit.layers import (
    FeedForward,
    TwoLayers,
    folded,
    gated_sum,
    layer_norm,
    modulated,
    rms_norm,
    sinusoid,
)
from physis_core.models.kit.patches import Patch, from_patches, to_patches
from physis_core.models.kit.rope import Rope, grid, rotate_halves, rotate_pairs
from physis_core.models.loading import KeyMap
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.units import OutputSemantics

PATCH: Patch = (1, 1, 1)
FRAMES_PER_LATENT = 8
PIXELS_PER_CELL = 32
TIMES = 1000  # the time embedding counts noise levels in thousandths
TIME_CHANNELS = 256

SIZES: dict[str, dict[str, Any]] = {
    'ltx-2.x': {'heads': 32, 'channels': 128, 'height': 17, 'width': 30, 'text_dim': 3840},
}

KEYS = KeyMap(
    renames=(
        (r'^patchify_proj\.', 'proj_in.'),
        (r'^adaln_single\.', 'time_embed.'),
        (r'^prompt_adaln_single\.', 'prompt_adaln.'),
        (r'\.q_norm\.', '.norm_q.'),
        (r'\.k_norm\.', '.norm_k.'),
    ),
    ignored=(
        r'^(audio_|av_cross_attn_|av_ca_|(video|audio)_embeddings_connector|keyframes_abs_pos_'
        r'|vae\.|vocoder\.|text_embedding_projection\.|rope|cross_attn_(audio_)?rope)'
        r'|^transformer_blocks\.\d+\.(audio_|video_to_audio_|video_a2v_|scale_shift_table_a2v_)'
    ),
)


@dataclass(frozen=True, kw_only=True)
class LtxOptions(StreamOptions):
    """Options of the `ltx` model.

    Attributes:
        heads: attention heads.
        head_dim: width of one head; the hidden state is ``heads * head_dim`` wide.
        ffn: width of the feed-forward layer.
        gated: a gate per attention head (LTX-2.3).
        prompt_modulation: cross-attention is modulated too (LTX-2.3).
        timed_prompt: the prompt's modulation depends on the step (2.3; not 2.5).
        text_projection: the prompt is projected to the width of the hidden state (2.0).
        split_rope: rotary channels are paired across the halves of a head, as in the published
            files; else with their neighbour.
        rope_theta: ratio of the highest rotary frequency to the lowest.
        seconds: length that time positions are a fraction of [s].
        pixels: height and width that space positions are a fraction of.
        fps: frames a second.
        eps: of all norms.
    """

    heads: int = 32
    head_dim: int = 128
    ffn: int = 16384
    gated: bool = False
    prompt_modulation: bool = False
    timed_prompt: bool = True
    text_projection: bool = True
    split_rope: bool = True
    rope_theta: float = 10_000.0
    seconds: int = 20
    pixels: int = 2048
    fps: float = 24.0
    eps: float = 1e-6

    @property
    def dim(self) -> int:
        """Width of the hidden state."""
        return self.heads * self.head_dim

    @property
    def modulations(self) -> int:
        """Triples (shift, scale, gate) of a block."""
        return 3 if self.prompt_modulation else 2


class LtxBlock(nn.Module):
    """One block.  After loading, ``modulation`` replaces the table and what it is added to."""

    modulation: Tensor
    prompt_modulation: Tensor

    def __init__(self, options: LtxOptions) -> None:
        super().__init__()
        dim, heads, head_dim, eps = options.dim, options.heads, options.head_dim, options.eps
        source = dim if options.text_projection else options.text_dim
        self.attn1 = Attention(dim, heads, head_dim, eps=eps, gated=options.gated)
        self.attn2 = Attention(
            dim, heads, head_dim, source_dim=source, eps=eps, gated=options.gated)
        self.ff = FeedForward(dim, options.ffn)
        self.scale_shift_table = nn.Parameter(torch.empty(3 * options.modulations, dim))
        if options.prompt_modulation:
            self.prompt_scale_shift_table = nn.Parameter(torch.empty(2, dim))
        self._eps = eps

    def settle(self, times: Tensor, prompt_times: Tensor | None) -> None:
        """Compute modulation of projected times ``[passes, 6 or 9, dim]`` and ``[passes, 2, dim]``.

        Where the prompt's modulation does not depend on the pass, ``passes`` is 1 there.
        """
        self.register_buffer('modulation', folded(self.scale_shift_table + times).unsqueeze(2))
        del self.scale_shift_table
        if prompt_times is not None:
            self.register_buffer(
                'prompt_modulation', folded(self.prompt_scale_shift_table + prompt_times))
            del self.prompt_scale_shift_table

    def prompt(self, text: Tensor) -> Prompt:
        """Keys and values of text ``[1, text_tokens, dim]``, in ``[passes or 1, text_tokens]``."""
        if hasattr(self, 'prompt_modulation'):
            shift, scale = self.prompt_modulation.unsqueeze(2).unbind(1)
            text = modulated(text.float(), shift, scale, text.dtype)
        return (self.attn2.keys_values(text),)

    def forward(self, hidden: Tensor, modulation: Tensor, history: History, rope: Rope,
                prompts: Sequence[Prompt]) -> Tensor:
        """``[B, tokens, dim]`` to the same; ``modulation`` ``[B, 6 or 9, 1, dim]``."""
        shift, scale, gate, shift_ffn, scale_ffn, gate_ffn, *prompt = modulation.unbind(1)
        inner = modulated(rms_norm(hidden, self._eps), shift, scale, hidden.dtype)
        hidden = gated_sum(hidden, self.attn1.with_history(inner, history, rope), gate)
        inner = rms_norm(hidden, self._eps)
        if prompt:
            shift, scale, gate = prompt
            inner = modulated(inner, shift, scale, hidden.dtype)
            hidden = gated_sum(hidden, self.attn2.with_prompts(inner, prompts), gate)
        else:
            hidden = hidden + self.attn2.with_prompts(inner.to(hidden.dtype), prompts)
        inner = modulated(rms_norm(hidden, self._eps), shift_ffn, scale_ffn, hidden.dtype)
        return gated_sum(hidden, self.ff(inner), gate_ffn)


class Ltx(Backbone):
    """The whole denoiser."""

    stack_name = 'transformer_blocks'
    head_modulation: Tensor

    def __init__(self, options: LtxOptions, held: Collection[int]) -> None:
        super().__init__(_description(options), options.shift)
        dim = options.dim
        self.options = options
        self.proj_in = nn.Linear(options.channels, dim, dtype=self.dtype)
        if options.text_projection:
            self.caption_projection = TwoLayers(options.text_dim, dim, dim, 'gelu').to(self.dtype)
        self.time_embed = _time_embedding(dim, 3 * options.modulations)
        if options.prompt_modulation and options.timed_prompt:
            self.prompt_adaln = _time_embedding(dim, 2)
        self.transformer_blocks = cast(
            nn.ModuleDict({str(block): LtxBlock(options) for block in held}), self.dtype)
        self.proj_out = nn.Linear(dim, options.channels, dtype=self.dtype)
        self.scale_shift_table = nn.Parameter(torch.empty(2, dim))

    def settle(self) -> None:
        """Embed the times of all passes, modulate the head, and drop the time embeddings."""
        options = self.options
        times = self.schedule.times(self.description.graph.passes).to(self._device)
        waves = sinusoid(TIMES * times, TIME_CHANNELS)
        embedded, self._times = _embedded(self.time_embed, waves)
        self._prompt_times = None
        if options.prompt_modulation:
            self._prompt_times = waves.new_zeros(1, 2, options.dim)
            if options.timed_prompt:
                _, self._prompt_times = _embedded(self.prompt_adaln, waves)
                del self.prompt_adaln
        self.register_buffer('head_modulation', folded(
            self.scale_shift_table + embedded[:, None]).unsqueeze(2))
        del self.time_embed, self.scale_shift_table
        self.rope = _rope(options, self.description.graph.history_slots)

    def settle_block(self, block: int) -> None:
        """Compute the block's modulation."""
        self._block(block).settle(self._times, self._prompt_times)

    def prompt_context(self, *, text: Tensor) -> dict[int, Prompt]:
        """Keys and values of the prompt for each block held, per pass where they depend on it."""
        if self.options.text_projection:
            text = self.caption_projection(text)
        return {block: self._block(block).prompt(text) for block in self.held}

    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """Cells of ``[B, channels, latents, height, width]`` to ``[B, tokens, dim]``."""
        embedded: Tensor = self.proj_in(to_patches(latents, PATCH).to(self.dtype))
        return embedded

    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block, ``[B, tokens, dim]`` to the same shape."""
        weights = self._block(block)
        return weights.forward(
            hidden, weights.modulation[steps], history, self.rope,
            at_steps([context[block] for context in contexts], steps))

    def clean(self, hidden: Tensor, latents: Tensor, steps: Tensor) -> Tensor:
        """The head predicts the velocity from data to noise: ``x - level * v``."""
        return latents - self.levels(steps) * self.velocity(hidden, steps)

    def velocity(self, hidden: Tensor, steps: Tensor) -> Tensor:
        """Head: hidden states to ``[B, channels, latents, height, width]``, float32."""
        shift, scale = self.head_modulation[steps].unbind(1)
        inner = modulated(layer_norm(hidden, self.options.eps), shift, scale, hidden.dtype)
        return from_patches(self.proj_out(inner).float(), PATCH, self.options.latent,
                            channels_last=True)

    def _block(self, block: int) -> LtxBlock:
        weights = self.transformer_blocks[str(block)]
        assert isinstance(weights, LtxBlock)
        return weights


def _time_embedding(dim: int, vectors: int) -> nn.ModuleDict:
    return nn.ModuleDict({
        'emb': nn.ModuleDict({'timestep_embedder': TwoLayers(TIME_CHANNELS, dim, dim, 'silu')}),
        'linear': nn.Linear(dim, vectors * dim)})


def _embedded(embedding: nn.ModuleDict, waves: Tensor) -> tuple[Tensor, Tensor]:
    """The embedding ``[passes, dim]`` and its projection ``[passes, vectors, dim]``."""
    embedder = embedding.get_submodule('emb.timestep_embedder')
    embedded: Tensor = embedder(waves)
    projected = embedding['linear'](functional.silu(embedded))
    return embedded, projected.unflatten(-1, (-1, embedded.shape[-1]))


def _rope(options: LtxOptions, history_slots: int) -> Rope:
    """Seconds and pixels as fractions of a fixed extent, one frequency after the other per axis.

    Angles inside a chunk are float32, as the model was trained: at the highest frequencies their
    rounding is part of it.  The first latent of a stream is one frame, not eight.
    """
    extent = torch.tensor([options.seconds, options.pixels, options.pixels], device='cpu')
    per_axis = options.dim // 6
    rising = options.rope_theta ** torch.linspace(
        0, 1, per_axis, dtype=torch.float64, device='cpu') * (math.pi / 2)

    def channels(angles: Tensor) -> Tensor:
        """``[..., 3, per_axis]`` to ``[..., heads, head_dim / 2]``, filled up at the front."""
        flat = angles.transpose(-1, -2).flatten(-2)
        filled = functional.pad(flat, (options.dim // 2 - flat.shape[-1], 0))
        return filled.unflatten(-1, (options.heads, -1))

    def inside(first: bool) -> Tensor:
        frames = [FRAMES_PER_LATENT * latent - 3.0 for latent in range(options.latents)]
        if first:
            frames[0] = 0.5
        coordinates = grid(frames, *([PIXELS_PER_CELL * (cell + 0.5) for cell in range(cells)]
                                     for cells in options.latent[2:])).float()
        coordinates[:, 0] /= options.fps
        return channels((coordinates / extent * 2 - 1)[..., None] * rising.float())

    seconds = (FRAMES_PER_LATENT * options.latents / options.fps
               * torch.arange(1 + history_slots, dtype=torch.float64, device='cpu'))
    turns = torch.zeros(1 + history_slots, 1, 3, per_axis, dtype=torch.float64, device='cpu')
    turns[:, 0, 0] = (2 * seconds / options.seconds)[:, None] * rising
    return Rope.from_angles(inside(False), channels(turns),
                            rotate_halves if options.split_rope else rotate_pairs,
                            first=inside(True))


def _description(options: LtxOptions) -> ModelDescription:
    latent = TensorSpec(options.latent)
    return ModelDescription(
        name='ltx',
        graph=options.graph,
        tokens=options.latents * options.height * options.width,
        dim=options.dim,
        kv_heads=options.heads,
        head_dim=options.head_dim,
        latent=latent,
        condition=TensorSpec((1,)),
        observation={},
        outputs={'latents': latent},
        semantics=OutputSemantics(options.latents, frames_per_latent=FRAMES_PER_LATENT),
        dtype=options.dtype,
        prompt=options.prompt,
        renoise=options.renoise,
    )


FAMILY = Family('ltx', LtxOptions, SIZES, _description, Ltx, lambda options: KEYS)
read, describe, build = FAMILY.read, FAMILY.describe, FAMILY.build
