"""The generic model: any shape, folded modulation, weights by seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families import NoHistory

from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models.registry import ModelSpec, build, describe

STATE = {'state': np.linspace(-1, 1, 6, dtype=np.float32)}


def dit(**options: Any) -> ModelSpec:
    return ModelSpec('dit', {'dim': 16, 'heads': 2, 'tokens': 4, 'blocks': 3, **options})


def test_options_shape_the_description() -> None:
    description = describe(dit(steps=3, window=5, sinks=2, kv_mode='clean', latents=2, channels=7,
                               prompt=9, renoise=True, late_binding=True))
    graph = description.graph
    assert (graph.steps, graph.blocks, graph.window_chunks, graph.sink_chunks) == (3, 3, 5, 2)
    assert graph.kv_mode is KVMode.CLEAN
    assert (description.tokens, description.dim, description.head_dim) == (4, 16, 8)
    assert description.outputs['positions'].shape == (4, 7)
    assert description.semantics.control_points_per_chunk == 4
    assert description.semantics.control_points_per_latent == 2
    assert description.prompt['prompt'].shape == (9,)
    assert description.renoise and description.late_binding


def test_rows_at_different_steps_equal_rows_alone() -> None:
    """One row folds its modulation into the norm, several gather theirs."""
    model = build(dit())
    hidden = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))
    steps = torch.tensor([0, 3, 1])
    together = model.block(2, hidden, steps, NoHistory(3), [None] * 3)
    for row in range(3):
        alone = model.block(2, hidden[row:row + 1], steps[row:row + 1], NoHistory(), [None])
        assert (alone[0] - together[row]).abs().max() < 1e-5


def test_weights_depend_on_seed_and_block_alone() -> None:
    hidden = torch.ones(1, 4, 16)
    step = torch.tensor([1])

    def after(model: Any) -> torch.Tensor:
        return model.block(2, hidden, step, NoHistory(), [None])

    whole = after(build(dit()))
    assert torch.equal(whole, after(build(dit(), [2])))
    assert not torch.equal(whole, after(build(dit(seed=1))))


def test_steps_go_from_noise_to_what_the_head_predicts() -> None:
    noise = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0))
    fresh = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(1))
    for renoise in (False, True):
        model = build(dit(renoise=renoise))
        condition = model.encode(STATE, 0.1)[None]
        hidden = model.embed(noise, condition, torch.tensor([0]))
        noises = fresh if renoise else None
        last, first = (model.step_update(hidden, noise, condition, noises, torch.tensor([step]))
                       for step in (3, 0))
        other = fresh if renoise else noise
        assert torch.allclose(first, last + 0.75 * (other - last), atol=1e-6)
        assert model.decode(last[0], condition[0])['positions'].shape == (4, 6)


def test_prompts_and_leads_matter() -> None:
    model = build(dit(prompt=2))
    hidden, step = torch.ones(1, 4, 16), torch.tensor([0])
    ends = [model.block(0, hidden, step, NoHistory(), [model.context({'prompt': prompt})])
            for prompt in (np.zeros(2, np.float32), np.ones(2, np.float32))]
    assert not torch.allclose(*ends)
    assert not torch.equal(model.encode(STATE, 0.1), model.encode(STATE, 0.2))


@pytest.mark.parametrize(('options', 'message'), [
    ({'dims': 3}, 'did you mean `dim`'), ({'dim': '16'}, 'whole number'),
    ({'dim': 10, 'heads': 4}, 'heads'), ({'latents': 3}, 'latents'), ({'tokens': 0}, 'least is 1'),
    ({'kv_mode': 'none'}, 'same_step')])
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe(dit(**options))
