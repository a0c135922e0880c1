"""Everything a model holds and makes is on one device; the meta device stands in for a GPU.

Full-size blocks run there without memory, and any tensor left on the CPU is an error.
"""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, NoHistory, condition, model_of, noise, small, text

from physis_core.errors import InputError
from physis_core.models.protocol import StageModel
from physis_core.models.registry import build
from physis_core.models.sizes import FAMILY_OF, spec_of


def one_pass(model: StageModel, rows: int) -> list[torch.Tensor]:
    """Hidden states after block 1 and the latents of the next step, at step 1."""
    description = model.description
    with torch.device('meta'):
        prompt = {name: torch.empty(spec.shape) for name, spec in description.prompt.items()}
        context = model.context(prompt)  # type: ignore[arg-type]
        latents = torch.empty(rows, *description.latent.shape)
        conditions = torch.empty(rows, *description.condition.shape)
        steps = torch.ones(rows, dtype=torch.int64)
        history = NoHistory(rows)
    hidden = model.embed(latents, conditions, steps)
    hidden = model.block(1, hidden, steps, history, [context] * rows)
    noises = latents if description.renoise else None
    return [hidden, model.step_update(hidden, latents, conditions, noises, steps)]


@pytest.mark.parametrize('name', FAMILY_OF)
def test_full_size_blocks_have_the_described_shapes(name: str) -> None:
    with torch.device('meta'):
        model = build(spec_of(name), [1])
    description = model.description
    hidden, latents = one_pass(model, rows=2)
    assert (hidden.shape, hidden.dtype) == ((2, *description.hidden.shape), torch.bfloat16)
    assert (latents.shape, latents.dtype) == ((2, *description.latent.shape), torch.float32)
    assert {hidden.device.type, latents.device.type} == {'meta'}


@pytest.mark.parametrize('family', FAMILIES)
def test_half_precision_is_near_single(family: str) -> None:
    results = []
    for dtype in ('float32', 'bfloat16'):
        model = model_of(small(family, dtype=dtype))
        steps, description = torch.tensor([1]), model.description
        latents = noise(description, 0)[None]
        hidden = model.embed(latents, condition(description, 0)[None], steps)
        for block in range(2):
            hidden = model.block(block, hidden, steps, NoHistory(), [model.context(text(model))])
        assert hidden.dtype == description.hidden.torch_dtype
        results.append(model.clean(hidden, latents, steps))  # type: ignore[attr-defined]
    assert results[1].dtype == torch.float32
    assert (results[0] - results[1]).abs().mean() < 0.02 * results[0].abs().mean()


@pytest.mark.skipif(not torch.cuda.is_available(), reason='this machine has no CUDA device')
@pytest.mark.parametrize('family', FAMILIES)
def test_a_gpu_computes_what_the_cpu_computes(family: str) -> None:
    results = []
    for device in ('cpu', 'cuda'):
        with torch.device(device):
            model = build(small(family))
        description = model.description
        steps = torch.tensor([1], device=device)
        history = NoHistory()
        history.positions = history.positions.to(device)
        hidden = model.embed(noise(description, 0)[None].to(device),
                             condition(description, 0)[None].to(device), steps)
        results.append(model.block(0, hidden, steps, history, [model.context(text(model))]).cpu())
    assert (results[0] - results[1]).abs().max() < 1e-3


def test_unknown_names_are_refused() -> None:
    assert model_of(spec_of('dit', dim=16, heads=2)).description.dim == 16
    with pytest.raises(InputError, match=r'choose one of .*wan2\.1-1\.3b'):
        spec_of('wan3')
    with pytest.raises(InputError, match='size `huge`'):
        build(small('wan', size='huge'))
