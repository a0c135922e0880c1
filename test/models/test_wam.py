"""World action models: phases, tokens that are not remembered, and what really happened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, NoHistory, condition, model_of, noise, small, text
from independent import TOLERANCE, MaskedAttention, wan_reference
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models import dreamzero, lingbot
from physis_core.models.loading import parameter_shapes
from physis_core.models.registry import build, describe


def filled(spec_family: str, reference: nn.Module, folder: Path, renamed: Mapping[str, str]
           ) -> tuple[Any, dict[str, Tensor]]:
    """Our model with the reference's weights, random ones elsewhere; and all of them by name."""
    extra = _parameters_before_settling(spec_family)
    state = {renamed.get(name, name): tensor for name, tensor in reference.state_dict().items()}
    for name, shape in extra.items():
        if name not in state:
            state[name] = torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
    save_file({name: tensor.reshape(extra[name]).contiguous() for name, tensor in state.items()},
              folder / 'weights.safetensors')
    return build(small(spec_family, weights=str(folder / 'weights.safetensors'))), state


def _parameters_before_settling(family: str) -> Mapping[str, tuple[int, ...]]:
    module, kind = {'lingbot': (lingbot, lingbot.Lingbot),
                    'dreamzero': (dreamzero, dreamzero.Dreamzero)}[family]
    options = module.read(FAMILIES[family])
    return parameter_shapes(lambda held: kind(options, held), range(options.blocks))


def axis(width: int) -> Tensor:
    return 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def angles(places: Tensor) -> Tensor:
    """Angles ``[tokens, 16]`` of (time, height, width): 12, 10 and 10 of 32 channels."""
    return torch.cat([places[:, index, None] * axis(width)
                      for index, width in enumerate((12, 10, 10))], -1)


def video_places(start: float = 0.0) -> Tensor:
    return torch.cartesian_prod(start + torch.arange(2.0), torch.arange(2.0), torch.arange(3.0))


def through_blocks(reference: Any, hidden: Tensor, words: Tensor, times: Tensor, places: Tensor,
                   mask: Tensor | None, embedders: list[Any]) -> Tensor:
    """The reference's blocks; ``times`` ``[tokens]``, embedded by the embedder of each token."""
    projected = torch.stack([
        embedder.time_proj(functional.silu(embedder.time_embedder(
            embedder.timesteps_proj(time[None]))))[0].unflatten(-1, (6, -1))
        for time, embedder in zip(times, embedders, strict=True)])
    for block in reference.blocks:
        block.attn1.set_processor(MaskedAttention(mask, places))
        hidden = block(hidden, words, projected[None], None)
    return hidden


@pytest.mark.parametrize('step', [1, 3])  # of the video, of the actions
def test_lingbot_phases_equal_the_reference_blocks(tmp_path: Path, step: int) -> None:
    reference = wan_reference()
    renamed = {'patch_embedding.weight': 'patch_embedding_mlp.weight',
               'patch_embedding.bias': 'patch_embedding_mlp.bias'}
    model, state = filled('lingbot', reference, tmp_path, renamed)
    options = FAMILIES['lingbot']
    actions_embedder = wan_reference(seed=1).condition_embedder
    actions_embedder.load_state_dict(
        {name.removeprefix('condition_embedder_action.'): tensor for name, tensor in state.items()
         if name.startswith('condition_embedder_action.')}, strict=False)

    description = model.description
    latents = noise(description, 0)[None]
    steps = torch.tensor([step])
    context = [model.context(text(model))]
    hidden = model.embed(latents, condition(description, 0)[None], steps)
    actions, video = model.options.parts.split(latents)
    expected = torch.cat([
        functional.linear(actions, state['action_embedder.weight'], state['action_embedder.bias']),
        reference.patch_embedding(video).flatten(2).transpose(1, 2)], 1)
    assert (hidden - expected).abs().max() < TOLERANCE
    for block in range(2):
        hidden = model.block(block, hidden, steps, NoHistory(), context)

    spread = options['actions_per_latent']
    count = 2 * spread
    places = torch.cat([
        torch.tensor([[latent + (index + 1) / (spread + 1), -1.0, -1.0]
                      for latent in range(2) for index in range(spread)]), video_places()])
    # Three steps of actions after two of video; a shift of 5 for the video alone.
    video_levels = [1.0, 5 * 0.5 / (1 + 4 * 0.5), 0.0, 0.0, 0.0]
    action_levels = [1.0, 1.0, 1.0, 2 / 3, 1 / 3]
    times = 1000 * torch.tensor([action_levels[step]] * count + [video_levels[step]] * 12)
    mask = torch.ones(count + 12, count + 12, dtype=torch.bool)
    mask[count:, :count] = False
    words = reference.condition_embedder.text_embedder(
        torch.from_numpy(text(model)['text'])[None])
    embedders = [actions_embedder] * count + [reference.condition_embedder] * 12
    outcome = through_blocks(reference, expected, words, times, angles(places), mask, embedders)
    # What the actions' tokens carry while the video is denoised is never read.
    read = slice(count if step < 2 else 0, None)
    assert (hidden[:, read] - outcome[:, read]).abs().max() < TOLERANCE


def test_dreamzero_equals_the_reference_blocks(tmp_path: Path) -> None:
    reference = wan_reference()
    model, state = filled('dreamzero', reference, tmp_path, {})
    description = model.description
    latents, step = noise(description, 0)[None], 2
    given = condition(description, 0)[None]
    steps = torch.tensor([step])
    hidden = model.embed(latents, given, steps)
    actions, video = model.options.parts.split(latents)
    level = model.schedule.levels[step]

    def embodied(name: str, vectors: Tensor) -> Tensor:
        return vectors @ state[f'{name}.W'][0] + state[f'{name}.b'][0]

    waves = 1000 * level * torch.exp(-np.log(10_000) / 32 * torch.arange(32.0))
    time = torch.cat([waves.sin(), waves.cos()]).expand(1, 4, 64)
    wide = functional.silu(embodied('action_encoder.W2', torch.cat(
        [embodied('action_encoder.W1', actions), time], -1)))
    proprioception = embodied('state_encoder.layer2', functional.relu(
        embodied('state_encoder.layer1', given[:, :5])))
    expected = torch.cat([
        embodied('action_encoder.W3', wide), proprioception[:, None],
        reference.patch_embedding(video).flatten(2).transpose(1, 2)], 1)
    assert (hidden - expected).abs().max() < TOLERANCE

    for block in range(2):
        hidden = model.block(block, hidden, steps, NoHistory(), [model.context(text(model))])
    counts = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.0])  # actions, then the state
    places = torch.cat([counts[:, None] * axis(32), angles(video_places(start=1.0))])
    words = reference.condition_embedder.text_embedder(
        torch.from_numpy(text(model)['text'])[None])
    outcome = through_blocks(
        reference, expected, words, torch.full((17,), 1000 * level), places, None,
        [reference.condition_embedder] * 17)
    assert (hidden - outcome).abs().max() < TOLERANCE
    decoded = embodied('action_decoder.layer2', functional.relu(
        embodied('action_decoder.layer1', outcome[:, :4])))
    clean, _ = model.options.parts.split(model.clean(hidden, latents, steps))
    assert (clean - (actions - level * decoded)).abs().max() < TOLERANCE


def test_an_image_shows_dreamzero_the_scene_from_the_first_chunk_on() -> None:
    model = model_of(small('dreamzero', image_tokens=3, image_dim=8))
    description = model.description
    assert list(description.observation) == ['state', 'latents', 'image_condition']
    steps = torch.tensor([0])
    latents, given = noise(description, 0)[None], condition(description, 0)[None]

    def first_block(given: Tensor, prompt: Mapping[str, np.ndarray]) -> Tensor:
        hidden = model.embed(latents, given, steps)
        return model.block(0, hidden, steps, NoHistory(), [model.context(prompt)])

    plain = first_block(given, text(model))
    other_mask = given.clone()
    other_mask[:, -20 * 48:] += 1.0  # 20 channels of 2 latents of 4 by 6
    brighter = {**text(model), 'image': text(model)['image'] + np.float32(1.0)}
    assert not torch.allclose(plain, first_block(other_mask, text(model)))
    assert not torch.allclose(plain, first_block(given, brighter))


def test_lingbot_denoises_the_video_first_and_then_the_actions() -> None:
    model = model_of(small('lingbot'))
    description = model.description
    latents = noise(description, 0)[None]
    assert description.graph.kv_mode is KVMode.CLEAN
    for step in range(description.graph.steps):
        steps = torch.tensor([step])
        hidden = torch.randn(1, description.tokens, description.dim)
        updated = model.step_update(hidden, latents, latents, None, steps)
        actions_kept, video_kept = (
            torch.equal(before, after) for before, after in zip(
                model.options.parts.split(latents), model.options.parts.split(updated),
                strict=True))
        assert (actions_kept, video_kept) == ((True, False) if step < 2 else (False, True))
        latents = updated


@pytest.mark.parametrize('family', ['lingbot', 'dreamzero'])
def test_the_clean_pass_reads_what_really_happened(family: str) -> None:
    model = model_of(small(family))
    description = model.description
    clean = torch.tensor([description.graph.steps])
    happened = condition(description, 0)[None]
    imagined, other = noise(description, 0)[None], noise(description, 1)[None]
    registers = description.tokens - description.kv_chunk.shape[0]  # not remembered
    remembered = [model.embed(latent, happened, clean)[:, registers:]
                  for latent in (imagined, other)]
    assert torch.equal(*remembered)
    assert not torch.equal(remembered[0],
                           model.embed(imagined, happened + 1.0, clean)[:, registers:])
    assert description.late_binding  # the newest observation is there when the clean pass begins


def test_later_chunks_of_dreamzero_see_only_the_video() -> None:
    """Two streams with other actions, but the same clean video, remember the same."""
    spec = small('dreamzero')
    model = model_of(spec)
    description = model.description
    clean = torch.tensor([description.graph.steps])
    written = []
    for seed in (0, 1):
        latents = noise(description, seed)[None]
        hidden = model.embed(latents, condition(description, 0)[None], clean)
        for block in range(2):
            history = Recording()
            hidden = model.block(block, hidden, clean, history, [model.context(text(model))])
        written.append(history.keys)
    assert torch.equal(*written)
    assert description.kv_chunk.shape[0] == description.tokens - 5


class Recording(NoHistory):
    """No history, but the keys stay."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, None]:
        self.keys = keys
        return super().extend(keys, values)


def test_outputs_are_control_points_and_video() -> None:
    for family, points in (('lingbot', (6, 4)), ('dreamzero', (4, 3))):
        model = model_of(small(family))
        outputs = model.decode(noise(model.description, 0), condition(model.description, 0))
        assert outputs['positions'].shape == points
        assert outputs['latents'].shape == (4, 2, 4, 6)
        assert model.description.semantics.control_points_per_chunk == points[0]


def test_observations_are_checked() -> None:
    model = model_of(small('lingbot'))
    good = {name: np.zeros(spec.shape, np.float32)
            for name, spec in model.description.observation.items()}
    assert model.encode(good, 0.0).shape == model.description.condition.shape
    for wrong, message in (
            ({'latents': good['latents']}, 'lacks `actions`'),
            ({**good, 'actions': np.zeros((2, 2))}, r'shape \(2, 2\)'),
            ({**good, 'actions': good['actions'] + np.nan}, 'not finite')):
        with pytest.raises(InputError, match=message):
            model.encode(wrong, 0.0)


@pytest.mark.parametrize(('family', 'options', 'message'), [
    ('lingbot', {'action_steps': 5}, 'both phases'),
    ('lingbot', {'kv_mode': 'same_step'}, 'clean'),
    ('lingbot', {'image_tokens': 257}, 'leave it at 0'),
    ('dreamzero', {'embodiment': 1}, 'counted from 0'),
    ('dreamzero', {'renoise': True}, 'Euler'),
])
def test_options_that_contradict_the_model_are_refused(
        family: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe(small(family, **options))

