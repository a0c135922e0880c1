"""The denoisers of diffusers on small random configurations, as the independent reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, TEXT_TOKENS, NoHistory, condition, noise, small, text
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from physis_core.models.protocol import StageModel
from physis_core.models.registry import build

TOLERANCE = 1e-5


def diffusers_class(name: str) -> Any:
    """A class of diffusers, or a skipped test."""
    diffusers = pytest.importorskip(
        'diffusers', reason='diffusers is not installed: it is the independent reference')
    if not hasattr(diffusers, name):
        pytest.skip(f'this diffusers has no {name}')
    return getattr(diffusers, name)


def randomised(model: nn.Module) -> nn.Module:
    """Norms and biases away from 1 and 0, so that a forgotten one shows."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 1.0 if 'norm' in name and 'weight' in name else 0.0, 0.2)
    return model.eval().requires_grad_(False)


def wan_reference(seed: int = 0, **changes: Any) -> nn.Module:
    """A small `WanTransformer3DModel`."""
    options = FAMILIES['wan']
    torch.manual_seed(seed)
    return randomised(diffusers_class('WanTransformer3DModel')(**{
        'num_attention_heads': options['heads'], 'attention_head_dim': options['head_dim'],
        'in_channels': options['channels'], 'out_channels': options['channels'],
        'text_dim': options['text_dim'], 'freq_dim': options['freq_dim'],
        'ffn_dim': options['ffn'], 'num_layers': options['blocks'], **changes}))


def ltx_reference(**changes: Any) -> nn.Module:
    """A small `LTX2VideoTransformer3DModel`."""
    options = FAMILIES['ltx']
    torch.manual_seed(0)
    return randomised(diffusers_class('LTX2VideoTransformer3DModel')(**{
        'num_attention_heads': options['heads'], 'attention_head_dim': options['head_dim'],
        'in_channels': options['channels'], 'out_channels': options['channels'],
        'cross_attention_dim': options['heads'] * options['head_dim'],
        'caption_channels': options['text_dim'], 'num_layers': options['blocks'],
        'audio_in_channels': 4, 'audio_out_channels': 4, 'audio_num_attention_heads': 2,
        'audio_attention_head_dim': 16, 'audio_cross_attention_dim': 32,
        'rope_type': 'split', **changes}))


def h3_reference() -> nn.Module:
    """A small `MiniMaxH3Transformer3DModel`."""
    options = FAMILIES['h3']
    torch.manual_seed(0)
    return randomised(diffusers_class('MiniMaxH3Transformer3DModel')(
        num_attention_heads=options['heads'], attention_head_dim=options['head_dim'],
        hidden_size=options['dim'], num_layers=options['blocks'], num_refiner_layers=2,
        ffn_dim=options['ffn'], in_channels=options['channels'], audio_in_channels=4,
        text_dim=options['text_dim'], freq_dim=options['freq_dim'],
        time_embed_hidden_dim=options['time_inner'], time_embed_dim=options['time_dim'],
        rope_freq_dim=options['rope_freqs']))


def built_from(reference: nn.Module, folder: Path, family: str, **options: Any) -> StageModel:
    """Our model with the weights of the reference, through a file."""
    weights = folder / f'{family}.safetensors'
    save_file(reference.state_dict(), weights)
    return build(small(family, weights=str(weights), **options))


def one_chunk(model: StageModel, step: int, rows: int = 2) -> tuple[list[Tensor], Tensor]:
    """Hidden states after each block ``[rows, tokens, dim]``, and the latents that went in."""
    description = model.description
    latents = torch.stack([noise(description, row) for row in range(rows)])
    conditions = torch.stack([condition(description, row) for row in range(rows)])
    contexts = [model.context(text(model, row)) for row in range(rows)]
    steps = torch.full((rows,), step)
    hidden = model.embed(latents, conditions, steps)
    after = []
    for block in range(description.graph.blocks):
        hidden = model.block(block, hidden, steps, NoHistory(rows), contexts)
        after.append(hidden)
    return after, latents


def prompts(model: StageModel, rows: int = 2) -> Tensor:
    """The text that :func:`one_chunk` uses."""
    return torch.stack([torch.from_numpy(text(model, row)['text']) for row in range(rows)])


def outputs_of(blocks: nn.ModuleList) -> list[Tensor]:
    """A list that fills with the blocks' outputs while the reference runs."""
    outputs: list[Tensor] = []
    for block in blocks:
        block.register_forward_hook(lambda _, __, output: outputs.append(
            output[0] if isinstance(output, tuple) else output))
    return outputs


def block_causal(chunks: int, tokens: int) -> Tensor:
    """Bool ``[chunks * tokens, chunks * tokens]``: a chunk sees itself and all before it."""
    chunk = torch.arange(chunks).repeat_interleave(tokens)
    return chunk[:, None] >= chunk


class MaskedAttention:
    """An attention processor for diffusers that applies a mask and, if given, other angles."""

    def __init__(self, mask: Tensor | None = None, angles: Tensor | None = None) -> None:
        self._mask = mask
        self._angles = angles

    def __call__(self, attention: Any, hidden_states: Tensor, *arguments: Any,
                 **named: Any) -> Tensor:
        rotary = named.get('rotary_emb') or next(
            (value for value in arguments if isinstance(value, tuple)), None)
        queries, keys = attention.to_q(hidden_states), attention.to_k(hidden_states)
        per_head = attention.norm_q.weight.shape[0] != queries.shape[-1]
        heads = (attention.heads, -1)
        if per_head:
            queries, keys = queries.unflatten(-1, heads), keys.unflatten(-1, heads)
        queries, keys = attention.norm_q(queries), attention.norm_k(keys)
        if not per_head:
            queries, keys = queries.unflatten(-1, heads), keys.unflatten(-1, heads)
        values = attention.to_v(hidden_states).unflatten(-1, heads)
        if self._angles is not None:
            queries, keys = (_paired(vectors, self._angles) for vectors in (queries, keys))
        elif rotary is not None:
            turn = _halves if per_head else _pairs
            queries, keys = turn(queries, *rotary), turn(keys, *rotary)
        read = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), self._mask)
        return attention.to_out[0](read.transpose(1, 2).flatten(2))


def _paired(vectors: Tensor, angles: Tensor) -> Tensor:
    """Neighbouring channels turned by angles ``[tokens, half]``."""
    cosines, sines = angles.cos().float()[:, None], angles.sin().float()[:, None]
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    return torch.stack([even * cosines - odd * sines, even * sines + odd * cosines], -1).flatten(-2)


def _pairs(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Wan's tables: every value twice, ``[1, tokens, 1, head_dim]``."""
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    swapped = torch.stack([-odd, even], -1).flatten(-2)
    return vectors * cosines + swapped * sines


def _halves(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """H3's tables ``[tokens, channels that turn]``."""
    turning, rest = vectors.split(
        (cosines.shape[-1], vectors.shape[-1] - cosines.shape[-1]), -1)
    first, second = turning.chunk(2, -1)
    swapped = torch.cat([-second, first], -1)
    return torch.cat([turning * cosines[:, None] + swapped * sines[:, None], rest], -1)


def h3_layout(chunks: int, latents: int, height: int, width: int, *, text_tokens: int = TEXT_TOKENS,
              chunk_turn: float = 0.0) -> Mapping[str, Tensor]:
    """What the packed H3 model wants to know of ``chunks`` times (prompt, video)."""
    cells = [[32.0 * ((1.0 - side / (height * width) ** 0.5) / 2.0
                      + 2 * cell / (height * width) ** 0.5) for cell in range(side // 2)]
             for side in (height, width)]
    places, tags, rows_of = [], [], {0: [], 1: []}
    for chunk in range(chunks):
        for token in range(text_tokens):
            places.append((float(token), 0.0, 0.0))
            tags.append(1)
        start = text_tokens + chunk * chunk_turn
        for latent in range(latents):
            for row in cells[0]:
                for column in cells[1]:
                    places.append((start, row, column))
                    tags.append(0)
            start += 5.0 / 3.0 * (1, 4, 4, 4, 4)[latent % 5]
    for row, tag in enumerate(tags):
        rows_of[tag].append(row)
    return {
        'timestep_indices': torch.zeros(len(tags), dtype=torch.int64),
        'token_tags': torch.tensor(tags),
        'position_ids': torch.tensor(places, dtype=torch.float64),
        'video_indices': torch.tensor(rows_of[0], dtype=torch.int64),
        'audio_indices': torch.zeros(0, dtype=torch.int64),
        'text_indices': torch.tensor(rows_of[1], dtype=torch.int64),
    }
