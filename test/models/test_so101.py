"""The demo model: what its stages compute, what it refuses, what ships with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from physis_core.errors import InputError
from physis_core.models.protocol import chunk_noise
from physis_core.models.registry import ModelSpec, build, describe
from physis_core.models.so101 import network
from physis_core.models.so101.stages import CAMERA_NAMES, WEIGHTS, So101Model, load_network

CHUNKS = 11  # more than two windows


class OneStreamHistory:
    """All earlier KV of one stage, cut to what the graph says is visible."""

    def __init__(self, model: So101Model) -> None:
        self.graph = model.description.graph
        self.chunk = 0
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.positions = torch.empty(0)

    def extend(self, keys: torch.Tensor, values: torch.Tensor
               ) -> tuple[torch.Tensor, torch.Tensor, None]:
        self.positions = torch.tensor([self.graph.positions(self.chunk)])
        self.kept.append((keys, values))
        visible = [self.kept[-1], *(self.kept[chunk] for chunk in self.graph.history(self.chunk))]
        self.chunk += 1
        return (torch.cat([keys for keys, _ in visible], 1),
                torch.cat([values for _, values in visible], 1), None)


@pytest.fixture(scope='module')
def model() -> So101Model:
    built = build(ModelSpec('so101'))
    assert isinstance(built, So101Model)
    return built


def observation(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    images = {name: rng.integers(0, 256, (64, 64, 3), np.uint8) for name in CAMERA_NAMES}
    return {**images, 'joints': rng.normal(0.0, 0.3, 6).astype(np.float32)}


def test_shipped_weights_are_small_and_complete() -> None:
    assert WEIGHTS.stat().st_size <= 6_000_000
    shipped = load_network(WEIGHTS)
    assert all(torch.isfinite(tensor).all() for tensor in shipped.state_dict().values())


def test_tensors_match_the_description(model: So101Model) -> None:
    description = describe(ModelSpec('so101'))
    condition = model.encode(observation(), 0.1)
    latent = chunk_noise(description.latent, 0, 0, 0, 0)
    steps = torch.zeros(1, dtype=torch.int64)
    hidden = model.embed(latent[None], condition[None], steps)
    hidden = model.block(0, hidden, steps, OneStreamHistory(model), ())
    assert condition.shape == description.condition.shape
    assert hidden.shape == (1, *description.hidden.shape)
    assert model.step_update(hidden, latent[None], condition[None], None, steps).shape == (
        1, *description.latent.shape)
    outputs = model.decode(latent, condition)
    assert {name: value.shape for name, value in outputs.items()} == {
        name: spec.shape for name, spec in description.outputs.items()}
    assert description.semantics.chunk_duration_s == pytest.approx(0.16)


def test_stages_with_history_equal_the_whole_stream_at_once(model: So101Model) -> None:
    """Chunk by chunk with re-based positions is the same sum as one causal pass over a stream."""
    torch.manual_seed(0)
    hidden = torch.randn(1, CHUNKS * network.TOKENS, network.DIM)
    steps = torch.tensor([2])
    index = torch.arange(CHUNKS).repeat_interleave(network.TOKENS)
    distance = index[:, None] - index
    visible = (distance >= 0) & (distance <= network.WINDOW_CHUNKS)
    turns = network.rotations(CHUNKS)[index][:, None]

    def whole(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return network.attention(network.rotated(queries, turns), network.rotated(keys, turns),
                                 values, visible)

    expected = model.network.blocks['3'](hidden, steps, whole)
    history = OneStreamHistory(model)
    chunks = [model.block(3, chunk, steps, history, ())
              for chunk in hidden.split(network.TOKENS, 1)]
    torch.testing.assert_close(torch.cat(chunks, 1), expected, atol=1e-4, rtol=1e-4)


def test_rows_of_a_batch_do_not_mix(model: So101Model) -> None:
    """Rows at different steps and with different history lengths share one call."""
    torch.manual_seed(0)
    hidden = torch.randn(2, network.TOKENS, network.DIM)
    steps = torch.tensor([0, 3])
    earlier = [torch.randn(1, network.TOKENS, network.HEADS, network.HEAD_DIM) for _ in range(2)]

    class Ragged:
        positions = torch.tensor([[0, 0], [1, 0]])

        def extend(self, keys: torch.Tensor, values: torch.Tensor
                   ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            return (torch.cat([keys, earlier[0].expand_as(keys)], 1),
                    torch.cat([values, earlier[1].expand_as(values)], 1),
                    torch.tensor([[True, False], [True, True]]))

    class Alone:
        def __init__(self, row: int) -> None:
            self.row = row
            self.positions = torch.tensor([[[0]], [[1, 0]]][row])

        def extend(self, keys: torch.Tensor, values: torch.Tensor
                   ) -> tuple[torch.Tensor, torch.Tensor, None]:
            if self.row == 0:
                return keys, values, None
            return torch.cat([keys, earlier[0]], 1), torch.cat([values, earlier[1]], 1), None

    together = model.block(0, hidden, steps, Ragged(), ())
    for row in range(2):
        alone = model.block(0, hidden[row:row + 1], steps[row:row + 1], Alone(row), ())
        torch.testing.assert_close(together[row:row + 1], alone, atol=1e-5, rtol=1e-4)


def test_a_worker_loads_only_its_blocks(model: So101Model) -> None:
    part = build(ModelSpec('so101'), blocks={1, 5})
    assert isinstance(part, So101Model)
    assert set(part.network.blocks) == {'1', '5'}
    hidden = torch.randn(1, network.TOKENS, network.DIM)
    steps = torch.tensor([1])
    assert torch.equal(part.block(5, hidden, steps, OneStreamHistory(part), ()),
                       model.block(5, hidden, steps, OneStreamHistory(model), ()))


def test_noise_is_removed_by_degrees() -> None:
    clean, noise = torch.zeros(1, network.LATENT), torch.ones(1, network.LATENT)
    latents = noise
    for step, level in enumerate(network.NOISE_LEVELS[1:]):
        latents = network.denoised(latents, clean, torch.tensor([step]))
        torch.testing.assert_close(latents, torch.full_like(noise, level))


def test_the_lead_changes_the_condition(model: So101Model) -> None:
    assert not torch.equal(model.encode(observation(), 0.0), model.encode(observation(), 0.16))


@pytest.mark.parametrize(('change', 'lead_s', 'words'), [
    ({'front': None}, 0.1, 'lacks `front`'),
    ({'wrist': np.zeros((48, 64, 3), np.uint8)}, 0.1, 'resize'),
    ({'wrist': np.zeros((64, 64, 3), np.float32)}, 0.1, 'uint8'),
    ({'joints': np.zeros(7, np.float32)}, 0.1, r'\(7,\)'),
    ({'joints': np.full(6, np.nan, np.float32)}, 0.1, 'finite'),
    ({}, -0.01, 'lead'),
    ({}, 2.0, 'shorten'),
    ({}, float('nan'), 'lead'),
])
def test_bad_observations_are_refused(
        model: So101Model, change: dict[str, np.ndarray | None], lead_s: float, words: str) -> None:
    changed = {name: value for name, value in {**observation(), **change}.items()
               if value is not None}
    with pytest.raises(InputError, match=words):
        model.encode(changed, lead_s)


def test_unknown_options_and_missing_weights_are_refused() -> None:
    with pytest.raises(InputError, match='`depth`'):
        describe(ModelSpec('so101', {'depth': 3}))
    with pytest.raises(InputError, match='physis train so101'):
        build(ModelSpec('so101', {'weights': '/nowhere.safetensors'}))
