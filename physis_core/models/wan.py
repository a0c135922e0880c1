"""Wan 2.1 and 2.2 as causal stages ("Wan: Open and Advanced Large-Scale Video Generative Models").

A block: self-attention over the chunk and its history, cross-attention to the prompt, and a
feed-forward layer; shift, scale and gate of the first and the last depend on (step, block) alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.models.family import Family
from physis_core.models.kit.action_latent import observed
from physis_core.models.kit.attention import Attention, Prompt
from physis_core.models.kit.backbone import Backbone, StreamOptions, cast
from physis_core.models.kit.layers import (
    FeedForward,
    TwoLayers,
    folded,
    gated_sum,
    layer_norm,
    modulated,
    sinusoid,
)
from physis_core.models.kit.patches import Patch, from_patches, to_patches
from physis_core.models.kit.rope import Rope, frequencies, grid, rotate_pairs
from physis_core.models.loading import KeyMap
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.units import OutputSemantics

PATCH: Patch = (1, 2, 2)
FRAMES_PER_LATENT = 4
IMAGE_CHANNELS = 20  # of the mask 4, of the latents of the image 16
TIMES = 1000  # the time embedding counts noise levels in thousandths

SIZES: dict[str, dict[str, Any]] = {
    'wan2.1-1.3b': {'heads': 12, 'channels': 16, 'height': 60, 'width': 104},
    'wan2.1-14b': {'heads': 40, 'channels': 16, 'height': 60, 'width': 104},
    'wan2.2-5b': {'heads': 24, 'channels': 48, 'height': 44, 'width': 80},
}

_EMBEDDER = 'condition_embedder'
KEYS = KeyMap(
    renames=(
        (r'^time_embedding\.0\.', f'{_EMBEDDER}.time_embedder.linear_1.'),
        (r'^time_embedding\.2\.', f'{_EMBEDDER}.time_embedder.linear_2.'),
        (r'^text_embedding\.0\.', f'{_EMBEDDER}.text_embedder.linear_1.'),
        (r'^text_embedding\.2\.', f'{_EMBEDDER}.text_embedder.linear_2.'),
        (r'^time_projection\.1\.', f'{_EMBEDDER}.time_proj.'),
        (r'^head\.head\.', 'proj_out.'),
        (r'^head\.modulation$', 'scale_shift_table'),
        # In original files the affine norm, before cross-attention, is norm3.
        (r'^(blocks\.\d+)\.norm3\.', r'\1.norm2.'),
        (r'^(blocks\.\d+)\.modulation$', r'\1.scale_shift_table'),
        (r'\.self_attn\.', '.attn1.'),
        (r'\.cross_attn\.', '.attn2.'),
        (r'\.(attn[12])\.([qkv])\.', r'.\1.to_\2.'),
        (r'\.attn2\.([kv])_img\.', r'.attn2.add_\1_proj.'),
        (r'\.attn2\.norm_k_img\.', '.attn2.norm_added_k.'),
        (r'^img_emb\.proj\.0\.', f'{_EMBEDDER}.image_embedder.norm1.'),
        (r'^img_emb\.proj\.1\.', f'{_EMBEDDER}.image_embedder.ff.net.0.proj.'),
        (r'^img_emb\.proj\.3\.', f'{_EMBEDDER}.image_embedder.ff.net.2.'),
        (r'^img_emb\.proj\.4\.', f'{_EMBEDDER}.image_embedder.norm2.'),
        (r'\.(attn[12])\.o\.', r'.\1.to_out.0.'),
        (r'\.ffn\.0\.', '.ffn.net.0.proj.'),
        (r'\.ffn\.2\.', '.ffn.net.2.'),
    ),
    ignored=r'^(freqs|rope\.)',
)


@dataclass(frozen=True, kw_only=True)
class WanOptions(StreamOptions):
    """Options of the `wan` model.

    Attributes:
        heads: attention heads.
        head_dim: width of one head; the hidden state is ``heads * head_dim`` wide.
        ffn: width of the feed-forward layer.
        freq_dim: width of the sinusoidal time embedding.
        eps: of all norms.
        image_tokens: tokens of an image beside the prompt's text, in models made from an image
            (0: none); they also take :data:`IMAGE_CHANNELS` more channels.
        image_dim: width of those tokens.
    """

    heads: int = 12
    head_dim: int = 128
    ffn: int = 8960
    freq_dim: int = 256
    eps: float = 1e-6
    image_tokens: int = 0
    image_dim: int = 1280

    @property
    def prompt(self) -> dict[str, TensorSpec]:
        """Encoded text, and the encoded image where the model takes one."""
        image = {'image': TensorSpec((self.image_tokens, self.image_dim))}
        return {**super().prompt, **(image if self.image_tokens else {})}

    @property
    def image_condition(self) -> dict[str, TensorSpec]:
        """What an image adds to the latents: mask and latents, ``[20, latents, h, w]``."""
        shape = (IMAGE_CHANNELS, *self.latent[1:])
        return {'image_condition': TensorSpec(shape)} if self.image_tokens else {}

    @property
    def in_channels(self) -> int:
        """Channels of what is embedded."""
        return self.channels + (IMAGE_CHANNELS if self.image_tokens else 0)

    @property
    def dim(self) -> int:
        """Width of the hidden state."""
        return self.heads * self.head_dim

    @property
    def cells(self) -> tuple[int, int, int]:
        """Tokens of a chunk along time, height and width."""
        return self.latents, self.height // PATCH[1], self.width // PATCH[2]

    @property
    def video_tokens(self) -> int:
        """Tokens of a chunk."""
        latents, rows, columns = self.cells
        return latents * rows * columns


SelfAttention = Callable[[Attention, Tensor], Tensor]


class WanBlock(nn.Module):
    """One block.  After loading, ``modulation`` replaces the table and the time projection."""

    modulation: Tensor

    def __init__(self, options: WanOptions) -> None:
        super().__init__()
        dim, heads, head_dim, eps = options.dim, options.heads, options.head_dim, options.eps
        self.attn1 = Attention(dim, heads, head_dim, eps=eps)
        self.attn2 = Attention(dim, heads, head_dim, eps=eps, image=options.image_tokens > 0)
        self.norm2 = nn.LayerNorm(dim, eps)
        self.ffn = FeedForward(dim, options.ffn)
        self.scale_shift_table = nn.Parameter(torch.empty(1, 6, dim))
        self._eps = eps

    def settle(self, times: Tensor) -> None:
        """Compute modulation of projected times ``[passes, 6, groups of tokens, dim]``."""
        self.register_buffer('modulation', folded(self.scale_shift_table.unsqueeze(2) + times))
        del self.scale_shift_table

    def forward(self, hidden: Tensor, modulation: Tensor, attend: SelfAttention,
                prompts: Sequence[Prompt]) -> Tensor:
        """``[B, tokens, dim]`` to the same; ``modulation`` ``[B, 6, 1 or tokens, dim]``."""
        shift, scale, gate, shift_ffn, scale_ffn, gate_ffn = modulation.unbind(1)
        inner = modulated(layer_norm(hidden, self._eps), shift, scale, hidden.dtype)
        hidden = gated_sum(hidden, attend(self.attn1, inner), gate)
        inner = layer_norm(hidden, self._eps, self.norm2).to(hidden.dtype)
        hidden = hidden + self.attn2.with_prompts(inner, prompts)
        inner = modulated(layer_norm(hidden, self._eps), shift_ffn, scale_ffn, hidden.dtype)
        return gated_sum(hidden, self.ffn(inner), gate_ffn)


class ImageEmbedding(nn.Module):
    """Tokens of an encoded image, ``[1, image_tokens, inputs]`` to ``[..., outputs]``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(inputs)
        self.ff = nn.ModuleDict({'net': nn.ModuleDict({
            '0': nn.ModuleDict({'proj': nn.Linear(inputs, inputs)}),
            '2': nn.Linear(inputs, outputs)})})
        self.norm2 = nn.LayerNorm(outputs)

    def forward(self, image: Tensor) -> Tensor:
        """Norm, two projections around a GELU, norm."""
        wide = self.get_submodule('ff.net.0.proj')(self.norm1(image))
        embedded: Tensor = self.norm2(self.get_submodule('ff.net.2')(functional.gelu(wide)))
        return embedded


class Wan(Backbone):
    """The whole denoiser."""

    blocks: nn.ModuleDict
    head_modulation: Tensor

    def __init__(self, options: WanOptions, held: Collection[int]) -> None:
        super().__init__(_description(options), options.shift)
        dtype = self.dtype
        dim = options.dim
        self.options = options
        self.patch_embedding = nn.Conv3d(options.in_channels, dim, PATCH, PATCH, dtype=dtype)
        self.condition_embedder = nn.ModuleDict({
            'time_embedder': TwoLayers(options.freq_dim, dim, dim, 'silu'),
            'time_proj': nn.Linear(dim, 6 * dim),
            'text_embedder': TwoLayers(options.text_dim, dim, dim, 'gelu').to(dtype)})
        if options.image_tokens:
            self.condition_embedder['image_embedder'] = ImageEmbedding(
                options.image_dim, dim).to(dtype)
        self.blocks = cast(
            nn.ModuleDict({str(block): WanBlock(options) for block in held}), dtype)
        self.proj_out = nn.Linear(dim, options.channels * PATCH[1] * PATCH[2], dtype=dtype)
        self.scale_shift_table = nn.Parameter(torch.empty(1, 2, dim))

    def settle(self) -> None:
        """Embed the times of all passes, modulate the head, and drop the time embedding."""
        embedder = self.condition_embedder
        times = self.schedule.times(self.description.graph.passes).to(self._device)
        embedded = embedder['time_embedder'](sinusoid(TIMES * times, self.options.freq_dim))
        self._times = embedder['time_proj'](functional.silu(embedded)).unflatten(-1, (6, 1, -1))
        self.register_buffer('head_modulation', folded(
            self.scale_shift_table + embedded[:, None]).unsqueeze(2))
        del embedder['time_embedder'], embedder['time_proj'], self.scale_shift_table
        self.rope = Rope.from_angles(
            *wan_angles(self.options, self.description.graph.history_slots), rotate_pairs)

    def settle_block(self, block: int) -> None:
        """Compute the block's modulation."""
        self._block(block).settle(self._times)

    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> Tensor:
        """The lead [s]; or, for a model made from an image, what the image adds to the latents."""
        if not self.options.image_tokens:
            return super().encode(observation, lead_s)
        return observed(observation, self.description.observation, 'wan').to(self._device)

    def prompt_context(self, *, text: Tensor, image: Tensor | None = None) -> dict[int, Prompt]:
        """Keys and values of the prompt for each block held."""
        embedder = self.condition_embedder
        words = embedder['text_embedder'](text)
        if image is None:
            return {block: (self._block(block).attn2.keys_values(words),) for block in self.held}
        seen = embedder['image_embedder'](image)
        return {block: (self._block(block).attn2.keys_values(words),
                        self._block(block).attn2.image_keys_values(seen)) for block in self.held}

    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """Patches of ``[B, channels, latents, height, width]`` to ``[B, tokens, dim]``."""
        if self.options.image_tokens:
            image = conditions.view(-1, IMAGE_CHANNELS, *latents.shape[2:])
            latents = torch.cat([latents, image], 1)
        weight = self.patch_embedding.weight.flatten(1)
        return functional.linear(
            to_patches(latents, PATCH).to(self.dtype), weight, self.patch_embedding.bias)

    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block, ``[B, tokens, dim]`` to the same shape."""
        weights = self._block(block)
        return weights.forward(
            hidden, weights.modulation[steps],
            lambda attention, inner: attention.with_history(inner, history, self.rope),
            [context[block] for context in contexts])

    def _block(self, block: int) -> WanBlock:
        weights = self.blocks[str(block)]
        assert isinstance(weights, WanBlock)
        return weights

    def clean(self, hidden: Tensor, latents: Tensor, steps: Tensor) -> Tensor:
        """The head predicts the velocity from data to noise: ``x - level * v``."""
        return latents - self.levels(steps) * self.velocity(hidden, steps)

    def velocity(self, hidden: Tensor, steps: Tensor) -> Tensor:
        """Head: hidden states to ``[B, channels, latents, height, width]``, float32."""
        shift, scale = self.head_modulation[steps].unbind(1)
        inner = modulated(layer_norm(hidden, self.options.eps), shift, scale, hidden.dtype)
        return from_patches(self.proj_out(inner).float(), PATCH, self.options.latent,
                            channels_last=True)


def wan_angles(options: WanOptions, history_slots: int, *, before: Tensor | None = None,
               start: int = 0) -> tuple[Tensor, Tensor]:
    """Time, height and width turn a third of the channels each; time takes what is left over.

    Args:
        options: the shape.
        history_slots: chunks in the history at most.
        before: places (time, height, width) of tokens before the video, ``[tokens, 3]``.
        start: time of the first latent.

    Returns:
        Angles inside the chunk ``[tokens, 1, half]`` and by its position
        ``[positions, 1, 1, half]``, float64.
    """
    side = 2 * (options.head_dim // 6)
    widths = (options.head_dim - 2 * side, side, side)
    bases = [frequencies(width, 10_000.0) for width in widths]
    latents, rows, columns = options.cells
    places = grid(range(start, start + latents), range(rows), range(columns))
    if before is not None:
        places = torch.cat([before.to(places), places])
    inside = torch.cat([places[:, axis, None] * base for axis, base in enumerate(bases)], -1)
    times = latents * torch.arange(1 + history_slots, device='cpu')
    chunk = torch.zeros(len(times), 1, 1, inside.shape[-1], dtype=torch.float64, device='cpu')
    chunk[..., :widths[0] // 2] = times[:, None, None, None] * bases[0]
    return inside.unsqueeze(1), chunk


def _description(options: WanOptions) -> ModelDescription:
    latent = TensorSpec(options.latent)
    return ModelDescription(
        name='wan',
        graph=options.graph,
        tokens=options.video_tokens,
        dim=options.dim,
        kv_heads=options.heads,
        head_dim=options.head_dim,
        latent=latent,
        condition=TensorSpec((
            sum(spec.elements for spec in options.image_condition.values()) or 1,)),
        observation=options.image_condition,
        outputs={'latents': latent},
        semantics=OutputSemantics(options.latents, frames_per_latent=FRAMES_PER_LATENT),
        dtype=options.dtype,
        prompt=options.prompt,
        renoise=options.renoise,
    )


FAMILY = Family('wan', WanOptions, SIZES, _description, Wan, lambda options: KEYS)
read, describe, build = FAMILY.read, FAMILY.describe, FAMILY.build
