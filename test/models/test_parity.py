"""Blocks and whole denoisers equal those of diffusers: one chunk, then a stream of chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, ChunkByChunk, condition, noise, text
from independent import (
    TOLERANCE,
    MaskedAttention,
    block_causal,
    built_from,
    h3_layout,
    h3_reference,
    ltx_reference,
    one_chunk,
    outputs_of,
    prompts,
    wan_reference,
)
from torch import Tensor

from physis_core.models.kit.patches import to_patches

STEP = 1
CHUNKS = 4


def assert_blocks_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for block, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert their.abs().max() > 0.1
        assert (our - their).abs().max() < TOLERANCE, block


@pytest.mark.parametrize('size', [{}, {'latents': 5, 'height': 6}])
def test_wan_blocks_and_denoiser(tmp_path: Path, size: dict[str, int]) -> None:
    reference = wan_reference()
    model = built_from(reference, tmp_path, 'wan', **size)
    expected = outputs_of(reference.blocks)
    hidden, latents = one_chunk(model, STEP)
    time = 1000 * model.schedule.times(4)[STEP]
    velocity = reference(latents, time.expand(2), prompts(model)).sample
    assert_blocks_equal(hidden, expected)
    steps = torch.tensor([STEP, STEP])
    assert (model.velocity(hidden[-1], steps) - velocity).abs().max() < TOLERANCE


def test_wan_made_from_an_image(tmp_path: Path) -> None:
    """Mask and latents of the image beside the noise, its tokens beside the text's."""
    reference = wan_reference(in_channels=24, image_dim=12, added_kv_proj_dim=64)
    model = built_from(reference, tmp_path, 'wan', image_tokens=3, image_dim=12, text_tokens=512)
    assert (model.options.image_tokens, model.options.in_channels) == (3, 24)
    expected = outputs_of(reference.blocks)
    hidden, latents = one_chunk(model, STEP)
    given = torch.stack([condition(model.description, row) for row in range(2)])
    image = torch.stack([torch.from_numpy(text(model, row)['image']) for row in range(2)])
    time = 1000 * model.schedule.times(4)[STEP]
    velocity = reference(
        torch.cat([latents, given.view(2, 20, *latents.shape[2:])], 1), time.expand(2),
        prompts(model), encoder_hidden_states_image=image).sample
    assert_blocks_equal(hidden, expected)
    steps = torch.tensor([STEP, STEP])
    assert (model.velocity(hidden[-1], steps) - velocity).abs().max() < TOLERANCE


@pytest.mark.parametrize(('theirs', 'ours'), [
    ({}, {}),
    ({'rope_type': 'interleaved'}, {'split_rope': False}),
    ({'gated_attn': True, 'cross_attn_mod': True, 'use_prompt_embeddings': False},
     {'gated': True, 'prompt_modulation': True, 'text_projection': False, 'text_dim': 64}),
    ({'gated_attn': True, 'cross_attn_mod': True, 'use_prompt_embeddings': False,
      'use_prompt_adaln_single': False},
     {'gated': True, 'prompt_modulation': True, 'text_projection': False, 'text_dim': 64,
      'timed_prompt': False}),
], ids=['2.0', 'interleaved', '2.3', '2.5'])
def test_ltx_blocks_and_denoiser(tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any]
                                 ) -> None:
    reference = ltx_reference(**theirs)
    model = built_from(reference, tmp_path, 'ltx', ffn=256, rope_theta=10_000.0, latents=3, **ours)
    expected = outputs_of(reference.transformer_blocks)
    hidden, latents = one_chunk(model, STEP)
    velocity = run_ltx(reference, model, latents, 3)
    assert_blocks_equal(hidden, expected)
    tokens = to_patches(model.velocity(hidden[-1], torch.tensor([STEP, STEP])), (1, 1, 1))
    assert (tokens - velocity).abs().max() < TOLERANCE


def run_ltx(reference: Any, model: Any, latents: Tensor, frames: int, **options: Any) -> Tensor:
    """The video stream of the reference, alone."""
    rows, height, width = len(latents), *latents.shape[3:]
    time = (1000 * model.schedule.times(4)[STEP]).expand(rows)
    audio_text = reference.config.caption_channels if (
        reference.config.use_prompt_embeddings) else 32
    return reference(
        to_patches(latents, (1, 1, 1)), torch.randn(rows, 2, 4), prompts(model, rows),
        torch.randn(rows, 3, audio_text), sigma=time, audio_timestep=time,
        timestep=time[:, None].expand(rows, frames * height * width), num_frames=frames,
        height=height, width=width, audio_num_frames=2, isolate_modalities=True, **options).sample


@pytest.mark.parametrize('text_tokens', [5, 0])
def test_h3_blocks_and_denoiser(tmp_path: Path, text_tokens: int) -> None:
    reference = h3_reference()
    model = built_from(reference, tmp_path, 'h3', latents=7, text_tokens=text_tokens)
    expected = outputs_of(reference.transformer_blocks)
    hidden, latents = one_chunk(model, STEP)
    words = prompts(model) if text_tokens else torch.zeros(2, 0, 24)
    velocity = reference(
        to_patches(latents, (1, 2, 2)), torch.zeros(2, 0, 4), words,
        1.0 - model.schedule.times(4)[STEP:STEP + 1],
        **h3_layout(1, 7, 4, 6, text_tokens=text_tokens)).sample
    assert_blocks_equal(hidden, expected)
    tokens = to_patches(model.velocity(hidden[-1], torch.tensor([STEP, STEP])), (1, 2, 2))
    assert (tokens - velocity).abs().max() < TOLERANCE


# -- a stream, chunk by chunk, against the whole sequence at once behind a block-causal mask ------


def streamed(model: Any) -> tuple[list[Tensor], Tensor]:
    """Hidden states of the chunks, and their latents side by side in time."""
    stream = ChunkByChunk(model, STEP)
    hidden = [stream.next() for _ in range(CHUNKS)]
    latents = [noise(model.description, 1, chunk) for chunk in range(CHUNKS)]
    return hidden, torch.cat(latents, 1)[None]


def assert_streams_equal(model: Any, hidden: list[Tensor], velocity: Tensor) -> None:
    """Compare velocities ``[1, channels, latents of all chunks, height, width]``."""
    for chunk, (states, expected) in enumerate(
            zip(hidden, velocity.chunk(CHUNKS, 2), strict=True)):
        ours = model.velocity(states, torch.tensor([STEP]))
        assert (ours - expected).abs().max() < TOLERANCE, chunk


def test_wan_stream_equals_full_attention_behind_a_block_causal_mask(tmp_path: Path) -> None:
    reference = wan_reference()
    model = built_from(reference, tmp_path, 'wan', window=CHUNKS)
    mask = block_causal(CHUNKS, model.description.tokens)
    for block in reference.blocks:
        block.attn1.set_processor(MaskedAttention(mask))
    hidden, latents = streamed(model)
    time = 1000 * model.schedule.times(4)[STEP]
    assert_streams_equal(
        model, hidden, reference(latents, time.expand(1), prompts(model, 1)).sample)


def test_ltx_stream_equals_full_attention_behind_a_block_causal_mask(tmp_path: Path) -> None:
    theta = FAMILIES['ltx']['rope_theta']
    reference = ltx_reference(rope_theta=theta)
    model = built_from(reference, tmp_path, 'ltx', ffn=256, window=CHUNKS)
    hidden, latents = streamed(model)
    mask = block_causal(CHUNKS, model.description.tokens)
    tokens = run_ltx(reference, model, latents, 2 * CHUNKS,
                     video_self_attention_mask=mask[None].float())
    velocity = tokens.transpose(1, 2).unflatten(2, latents.shape[2:])
    assert_streams_equal(model, hidden, velocity)


def test_h3_stream_equals_full_attention_behind_a_block_causal_mask(tmp_path: Path) -> None:
    reference = h3_reference()
    model = built_from(reference, tmp_path, 'h3', window=CHUNKS)
    hidden, latents = streamed(model)
    layout = h3_layout(CHUNKS, 2, 4, 6, chunk_turn=2 * 5.0 / 3.0 * 17 / 5)
    # The prompt stands in every chunk anew, and only there.
    chunk = torch.arange(CHUNKS).repeat_interleave(model.description.tokens)
    video = layout['token_tags'] == 0
    mask = (chunk[:, None] == chunk) | ((chunk[:, None] > chunk) & video)
    for block in reference.transformer_blocks:
        block.attn.set_processor(MaskedAttention(mask))
    words = torch.from_numpy(text(model)['text'])[None]
    # The refiner reads the prompt once; its tokens are then placed in every chunk.
    reference.token_refiner = Repeated(reference.token_refiner, CHUNKS)
    tokens = reference(
        to_patches(latents, (1, 2, 2)), torch.zeros(1, 0, 4), words,
        1.0 - model.schedule.times(4)[STEP:STEP + 1], **layout).sample
    ours = torch.cat([to_patches(model.velocity(states, torch.tensor([STEP])), (1, 2, 2))
                      for states in hidden], 1)
    assert (ours - tokens).abs().max() < TOLERANCE


class Repeated(torch.nn.Module):
    """A module whose output is repeated along the tokens."""

    def __init__(self, module: torch.nn.Module, times: int) -> None:
        super().__init__()
        self._module = module
        self._times = times

    def forward(self, hidden: Tensor) -> Tensor:
        return self._module(hidden).repeat(1, self._times, 1)
