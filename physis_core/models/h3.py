"""MiniMax H3 as causal stages (model card "MiniMax-H3").

One packed sequence holds the prompt and the chunk's video, and there is no cross-attention: the
prompt's tokens come first in every chunk, pass through the blocks with it, and are not kept as
history.  Modulation depends on (step, block, text or video): it is computed when the weights are
read, and the projection that makes it, 40 % of a block, is dropped.  Audio is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.models.family import Family
from physis_core.models.kit.attention import Attention, attend
from physis_core.models.kit.backbone import Backbone, StreamOptions
from physis_core.models.kit.layers import FeedForward, TwoLayers, folded, modulated, sinusoid
from physis_core.models.kit.patches import Patch, from_patches, to_patches
from physis_core.models.kit.rope import Rope, frequencies, grid, rotate_halves
from physis_core.models.loading import KeyMap, Part
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.units import OutputSemantics

PATCH: Patch = (1, 2, 2)
TAGS = 3  # modulation exists for video, text and audio, in this order
VIDEO, TEXT = 0, 1
SPATIAL_EXTENT = 32.0
TURN_PER_FRAME = 5.0 / 3.0
FRAMES_OF_LATENTS = (1, 4, 4, 4, 4)
FRAMES_PER_LATENT = sum(FRAMES_OF_LATENTS) / len(FRAMES_OF_LATENTS)

SIZES: dict[str, dict[str, Any]] = {
    'h3': {'dim': 5376, 'heads': 56, 'channels': 24, 'height': 48, 'width': 84, 'shift': 12.0,
           'text_dim': 5120, 'text_tokens': 0},
}


@dataclass(frozen=True, kw_only=True)
class H3Options(StreamOptions):
    """Options of the `h3` model.  ``text_tokens`` is the length of the prompts; 0: no prompt.

    Attributes:
        dim: width of the hidden state.
        heads: attention heads; they are wider than the hidden state.
        head_dim: width of one head.
        ffn: width of the feed-forward layer.
        refiner_blocks: blocks that refine the prompt before it joins the video.
        freq_dim: width of the sinusoidal time embedding.
        time_inner: inner width of the time embedding.
        time_dim: width of the time embedding.
        rope_freqs: rotary frequencies per axis.
        eps: of all norms.
    """

    dim: int = 5376
    heads: int = 56
    head_dim: int = 128
    ffn: int = 14336
    refiner_blocks: int = 2
    freq_dim: int = 256
    time_inner: int = 5376
    time_dim: int = 2688
    rope_freqs: int = 16
    eps: float = 1e-5
    least_text_tokens: ClassVar[int] = 0

    @property
    def video_tokens(self) -> int:
        """Tokens of a chunk without the prompt's."""
        return self.latents * (self.height // PATCH[1]) * (self.width // PATCH[2])

    @property
    def patch_width(self) -> int:
        """Numbers in a patch."""
        return self.channels * PATCH[1] * PATCH[2]


class H3Block(nn.Module):
    """One block; without ``adaln_proj`` it is a block of the prompt's refiner.

    After loading, ``modulation`` replaces ``adaln_proj``.
    """

    modulation: Tensor

    def __init__(self, options: H3Options, *, timed: bool) -> None:
        super().__init__()
        dim, eps = options.dim, options.eps
        self.norm1 = nn.RMSNorm(dim, eps)
        self.attn = Attention(dim, options.heads, options.head_dim, bias=False,
                              norm_per_head=True, eps=eps)
        self.norm2 = nn.RMSNorm(dim, eps)
        self.ff = FeedForward(dim, options.ffn, bias=False, gated=True)
        if timed:
            self.adaln_proj = nn.ModuleDict(
                {'linear': nn.Linear(options.time_dim, 6 * TAGS * dim)})

    def settle(self, embedded: Tensor, tags: Tensor) -> None:
        """Compute modulation ``[passes, 6, tokens or 1, dim]`` of times ``[passes, time_dim]``."""
        raw = _projected(self.adaln_proj['linear'], embedded)
        by_tag = raw.unflatten(-1, (TAGS, 6, -1)).transpose(1, 2)
        self.register_buffer('modulation', folded(by_tag[:, :, tags]))
        del self.adaln_proj

    def refine(self, text: Tensor) -> Tensor:
        """A block of the refiner: text ``[1, text_tokens, dim]`` to the same."""
        inner = self.norm1(text)
        keys, values = self.attn.keys_values(inner)
        text = text + self.attn.output(attend(self.attn.queries(inner), keys, values), inner)
        refined: Tensor = text + self.ff(self.norm2(text))
        return refined

    def forward(self, hidden: Tensor, modulation: Tensor, history: History, rope: Rope,
                text_tokens: int) -> Tensor:
        """``[B, tokens, dim]`` to the same; ``modulation`` ``[B, 6, tokens or 1, dim]``."""
        shift, scale, gate, shift_ffn, scale_ffn, gate_ffn = modulation.unbind(1)
        inner = modulated(self.norm1(hidden), shift, scale, hidden.dtype)
        read = self.attn.with_history(inner, history, rope, registers=text_tokens)
        hidden = torch.addcmul(hidden, gate.to(hidden.dtype), read)
        inner = modulated(self.norm2(hidden), shift_ffn, scale_ffn, hidden.dtype)
        return torch.addcmul(hidden, gate_ffn.to(hidden.dtype), self.ff(inner))


class H3(Backbone):
    """The whole denoiser."""

    stack_name = 'transformer_blocks'
    head_modulation: Tensor

    def __init__(self, options: H3Options, held: Collection[int]) -> None:
        super().__init__(_description(options), options.shift)
        dim = options.dim
        self.options = options
        self.proj_in = nn.Linear(options.patch_width, dim)
        if 0 in held:  # the prompt enters at block 0
            self.context_embedder = nn.Linear(options.text_dim, dim, dtype=self.dtype)
            self.token_refiner = nn.ModuleDict({
                'refiner_blocks': nn.ModuleList(
                    [H3Block(options, timed=False) for _ in range(options.refiner_blocks)]),
                'final_norm': nn.RMSNorm(dim, options.eps)}).to(self.dtype)
        self.time_embedder = TwoLayers(
            options.freq_dim, options.time_inner, options.time_dim, 'silu')
        self.transformer_blocks = nn.ModuleDict(
            {str(block): H3Block(options, timed=True) for block in held}).to(self.dtype)
        self.norm_out = nn.ModuleDict({
            'norm': nn.RMSNorm(dim, options.eps, dtype=self.dtype),
            'linear': nn.Linear(options.time_dim, 2 * dim, dtype=self.dtype)})
        self.proj_out = nn.Linear(dim, options.patch_width)

    def settle(self) -> None:
        """Embed the times of all passes, modulate the head, and drop the time embedding."""
        options = self.options
        levels = self.schedule.times(self.description.graph.passes).to(self._device)
        self._embedded = self.time_embedder(sinusoid(1.0 - levels, options.freq_dim))
        raw = _projected(self.norm_out['linear'], self._embedded)
        self.register_buffer('head_modulation', folded(raw.unflatten(-1, (2, -1))).unsqueeze(2))
        del self.time_embedder, self.norm_out['linear']
        tags = [VIDEO] if not options.text_tokens else (
            [TEXT] * options.text_tokens + [VIDEO] * options.video_tokens)
        self._tags = torch.tensor(tags)
        self.rope = _rope(options, self.description.graph.history_slots)

    def settle_block(self, block: int) -> None:
        """Compute the block's modulation."""
        self._block(block).settle(self._embedded, self._tags)

    def context(self, prompt: Mapping[str, Any]) -> Tensor | None:
        """The refined prompt, where block 0 is held; None elsewhere and without a prompt."""
        if not self.options.text_tokens or 0 not in self.held:
            return None
        refined: Tensor = super().context(prompt)
        return refined

    def prompt_context(self, *, text: Tensor) -> Tensor:
        """The prompt as tokens ``[text_tokens, dim]``."""
        text = self.context_embedder(text)
        for block in self.token_refiner['refiner_blocks'].children():
            text = block.refine(text)  # type: ignore[operator]
        refined: Tensor = self.token_refiner['final_norm'](text)[0]
        return refined

    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """Patches of ``[B, channels, latents, height, width]`` after room for the prompt."""
        video = self.proj_in(to_patches(latents, PATCH).float()).to(self.dtype)
        return functional.pad(video, (0, 0, self.options.text_tokens, 0))

    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block, ``[B, tokens, dim]``; block 0 lets the prompt in."""
        text_tokens = self.options.text_tokens
        if block == 0 and text_tokens:
            hidden = torch.cat([torch.stack(list(contexts)), hidden[:, text_tokens:]], 1)
        weights = self._block(block)
        return weights.forward(
            hidden, weights.modulation[steps], history, self.rope, text_tokens)

    def clean(self, hidden: Tensor, latents: Tensor, steps: Tensor) -> Tensor:
        """The head predicts the velocity from noise to data: ``x + level * v``."""
        return latents + self.levels(steps) * self.velocity(hidden, steps)

    def velocity(self, hidden: Tensor, steps: Tensor) -> Tensor:
        """Head: hidden states to ``[B, channels, latents, height, width]``, float32."""
        shift, scale = self.head_modulation[steps].unbind(1)
        normal = self.norm_out['norm'](hidden[:, self.options.text_tokens:])
        return from_patches(self.proj_out(modulated(normal, shift, scale, torch.float32)), PATCH,
                            self.options.latent, channels_last=False)

    def _block(self, block: int) -> H3Block:
        weights = self.transformer_blocks[str(block)]
        assert isinstance(weights, H3Block)
        return weights


def key_map(options: H3Options) -> KeyMap:
    """Names in the published files, where some matrices are fused.

    There, the rows of queries, keys and values alternate head by head, and the gate of SwiGLU
    comes before the value.
    """
    heads, head_dim = options.heads, options.head_dim

    def projection(name: str, which: int) -> Part:
        def take(fused: Tensor) -> Tensor:
            return fused.unflatten(0, (heads, 3, head_dim))[:, which].flatten(0, 1)
        return Part(name, lambda shape: (shape[0] // 3, *shape[1:]), take)

    def projections(name: str) -> list[Part]:
        layer = name.removesuffix('qkv_proj.weight')
        return [projection(f'{layer}to_{which}.weight', index)
                for index, which in enumerate('qkv')]

    def value_first(name: str) -> list[Part]:
        name = name.replace('.mlp.fc1.', '.ff.net.0.proj.')
        return [Part(name, lambda shape: shape, lambda fused: torch.cat(fused.chunk(2)[::-1]))]

    return KeyMap(
        renames=(
            (r'^blocks\.', 'transformer_blocks.'),
            (r'^token_refiner\.blocks\.', 'token_refiner.refiner_blocks.'),
            (r'^video_patch_proj\.', 'proj_in.'),
            (r'^condition_proj\.', 'context_embedder.'),
            (r'^time_embedder\.proj_in\.', 'time_embedder.linear_1.'),
            (r'^time_embedder\.proj_out\.', 'time_embedder.linear_2.'),
            (r'^final_layer\.norm\.', 'norm_out.norm.'),
            (r'^final_layer\.adaln_proj\.linear\.', 'norm_out.linear.'),
            (r'^final_layer\.video_out\.', 'proj_out.'),
            (r'\.attn\.q_norm\.', '.attn.norm_q.'),
            (r'\.attn\.k_norm\.', '.attn.norm_k.'),
            (r'\.attn\.out_proj\.', '.attn.to_out.0.'),
            (r'\.mlp\.fc2\.', '.ff.net.2.'),
        ),
        fused=((r'\.attn\.qkv_proj\.weight$', projections), (r'\.mlp\.fc1\.weight$', value_first)),
        ignored=r'^(audio_|final_layer\.audio_out\.|rope\.)',
    )


def _projected(projection: nn.Module, embedded: Tensor) -> Tensor:
    """Times ``[passes, time_dim]`` through an activation, then a projection of any dtype."""
    assert isinstance(projection, nn.Linear)
    raw: Tensor = projection(functional.silu(embedded).to(projection.weight.dtype))
    return raw


def _rope(options: H3Options, history_slots: int) -> Rope:
    """One set of frequencies for time, height and width; the prompt stands in time alone.

    A latent is one frame or four, in turn; chunks stand at the mean distance.
    """
    base = frequencies(2 * options.rope_freqs, 10_000.0)
    starts = [0.0]
    for latent in range(options.latents - 1):
        starts.append(starts[-1] + TURN_PER_FRAME * FRAMES_OF_LATENTS[latent % 5])
    mean_side = (options.height * options.width) ** 0.5
    axes = [[SPATIAL_EXTENT * (0.5 * (1.0 - side / mean_side) + cell * patch / mean_side)
             for cell in range(side // patch)]
            for side, patch in zip(options.latent[2:], PATCH[1:], strict=True)]
    video = grid([options.text_tokens + start for start in starts], *axes)
    text = functional.pad(grid(range(options.text_tokens)), (0, 2))
    places = torch.cat([text, video]) if options.text_tokens else video
    inside = (places[..., None] * base).flatten(1).unsqueeze(1)

    turn = TURN_PER_FRAME * FRAMES_PER_LATENT * options.latents
    chunk = torch.zeros(1 + history_slots, 1, 1, 3 * len(base), dtype=torch.float64, device='cpu')
    times = turn * torch.arange(1 + history_slots, device='cpu')
    chunk[..., :len(base)] = times[:, None, None, None] * base
    own = None
    if options.text_tokens:
        own = chunk.repeat(1, len(places), 1, 1)
        own[:, :options.text_tokens] = 0.0
    return Rope.from_angles(inside, chunk, rotate_halves, own=own)


def _description(options: H3Options) -> ModelDescription:
    latent = TensorSpec(options.latent)
    return ModelDescription(
        name='h3',
        graph=options.graph,
        tokens=options.text_tokens + options.video_tokens,
        dim=options.dim,
        kv_heads=options.heads,
        head_dim=options.head_dim,
        kv_tokens=options.video_tokens,
        latent=latent,
        condition=TensorSpec((1,)),
        observation={},
        outputs={'latents': latent},
        semantics=OutputSemantics(options.latents, frames_per_latent=FRAMES_PER_LATENT),
        dtype=options.dtype,
        prompt=options.prompt,
        renoise=options.renoise,
    )


FAMILY = Family('h3', H3Options, SIZES, _description, H3, key_map)
read, describe, build = FAMILY.read, FAMILY.describe, FAMILY.build
