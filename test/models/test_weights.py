"""Loading: published layouts, strictness, and no more memory than the blocks held."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, NoHistory, condition, noise, small, text
from independent import h3_reference, outputs_of
from safetensors.torch import save_file
from test_key_maps import original_h3_names, original_wan_names
from torch import Tensor

from physis_core.errors import InputError
from physis_core.models import h3, wan
from physis_core.models.loading import RandomWeights, parameter_shapes
from physis_core.models.registry import build


@pytest.fixture(scope='module')
def state() -> dict[str, Tensor]:
    """Weights of the small Wan under its names in diffusers."""
    options = wan.read(FAMILIES['wan'])
    shapes = parameter_shapes(lambda held: wan.Wan(options, held), range(options.blocks))
    source = RandomWeights(7, shapes)
    return {name: source.tensor(name) for name in shapes}


def output(spec_options: Mapping[str, Any]) -> Tensor:
    """Hidden states of one chunk after all blocks."""
    model = build(small('wan', **spec_options))
    steps = torch.tensor([1])
    hidden = model.embed(noise(model.description, 0)[None],
                         condition(model.description, 0)[None], steps)
    for block in range(2):
        hidden = model.block(block, hidden, steps, NoHistory(), [model.context(text(model))])
    return hidden


def original(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same under the names of Wan's authors."""
    by_model_name = {part.name: name for name in original_wan_names(2)
                     for part in wan.KEYS.parts(name)}
    return {by_model_name[name]: tensor for name, tensor in state.items()}


def one_file(state: Mapping[str, Tensor], folder: Path) -> Path:
    save_file(dict(state), folder / 'model.safetensors')
    return folder / 'model.safetensors'


def sharded(state: Mapping[str, Tensor], folder: Path) -> Path:
    names = sorted(state)
    for shard in range(3):
        save_file({name: state[name] for name in names[shard::3]},
                  folder / f'model-{shard + 1:05}-of-00003.safetensors')
    return folder


def distilled(state: Mapping[str, Tensor], folder: Path) -> Path:
    """As causal distillation writes it: the averaged generator of a sharded module."""
    prefixed = {f'model._fsdp_wrapped_module.{name}': tensor
                for name, tensor in original(state).items()}
    noise_of_training = {name: tensor + 1.0 for name, tensor in prefixed.items()}
    torch.save({'generator': noise_of_training, 'generator_ema': prefixed, 'step': 600},
               folder / 'model.pt')
    return folder / 'model.pt'


@pytest.mark.parametrize('layout', [
    one_file, sharded, distilled,
    lambda state, folder: one_file(original(state), folder)],
    ids=['diffusers', 'sharded', 'distilled', 'original'])
def test_every_layout_gives_the_same_model(
        layout: Callable[[Mapping[str, Tensor], Path], Path], state: dict[str, Tensor],
        tmp_path: Path) -> None:
    assert torch.equal(output({'weights': str(layout(state, tmp_path))}), output({'seed': 7}))


def test_fused_h3_matrices_are_taken_apart(tmp_path: Path) -> None:
    """Rows of q, k, v head by head, and the gate before the value, as H3's authors store them."""
    reference = h3_reference()
    options = h3.read(FAMILIES['h3'])
    keys = h3.key_map(options)
    published = dict(reference.state_dict())
    stored: dict[str, Tensor] = {}
    for name in original_h3_names(options.blocks, options.refiner_blocks):
        parts = keys.parts(name)
        if len(parts) == 3:
            q, k, v = (published[part.name].unflatten(0, (options.heads, 1, options.head_dim))
                       for part in parts)
            stored[name] = torch.cat([q, k, v], 1).flatten(0, 2)
        elif '.mlp.fc1.' in name:
            stored[name] = torch.cat(published[parts[0].name].chunk(2)[::-1])
        elif parts:
            stored[name] = published[parts[0].name]
        else:
            stored[name] = torch.ones(3)  # audio and buffers: of no use here
    states = []
    for weights in (stored, published):
        (tmp_path / 'h3').mkdir(exist_ok=True)
        file = one_file({name: tensor.contiguous() for name, tensor in weights.items()},
                        tmp_path / 'h3')
        states.append(build(small('h3', weights=str(file))).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not any('adaln' in name for name in states[0])
    assert outputs_of(reference.transformer_blocks) == []


def test_wrong_files_are_refused_with_what_is_wrong(state: dict[str, Tensor], tmp_path: Path
                                                    ) -> None:
    lacking = {name: tensor for name, tensor in state.items() if '.ffn.' not in name}
    lacking['blocks.7.norm2.weight'] = torch.zeros(64)
    lacking['proj_out.bias'] = torch.zeros(3)
    with pytest.raises(InputError) as error:
        output({'weights': str(one_file(lacking, tmp_path))})
    assert '8 missing: blocks.0.ffn.net.0.proj.bias' in str(error.value)
    assert '1 unknown: blocks.7.norm2.weight' in str(error.value)
    assert '1 of another shape: proj_out.bias is (3,), not (16,)' in str(error.value)

    (tmp_path / 'empty').mkdir()
    (tmp_path / 'notes.txt').write_text('not weights')
    (tmp_path / 'damaged.safetensors').write_bytes(bytes(range(256)))
    for path, message in (('nowhere', 'do not exist'), ('damaged.safetensors', 'cannot be read'),
                          ('empty', r'holds no \.safetensors'),
                          ('notes.txt', r'end in `\.txt`')):
        with pytest.raises(InputError, match=message):
            output({'weights': str(tmp_path / path)})


def test_files_that_run_code_are_not_read(tmp_path: Path) -> None:
    torch.save({'generator_ema': {'a': print}}, tmp_path / 'model.pt')
    with pytest.raises(InputError, match='holds only tensors'):
        output({'weights': str(tmp_path / 'model.pt')})


def test_a_block_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match='block 2 does not exist'):
        build(small('wan'), [0, 2])


_MEASURE = """
import json, sys
from physis_core.models.registry import ModelSpec, build

def peak_bytes():
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith('VmHWM')) * 1024

options, blocks = json.loads(sys.argv[1])
build(ModelSpec('wan', {**options, 'weights': ''}), [])  # imports and thread pools
before = peak_bytes()
model = build(ModelSpec('wan', options), blocks)
print(json.dumps([peak_bytes() - before, sum(p.nbytes for p in model.parameters())]))
"""


@pytest.mark.skipif(not Path('/proc/self/status').exists(), reason='peak memory is read from /proc')
@pytest.mark.parametrize('layout', [one_file, distilled], ids=['safetensors', 'torch'])
def test_memory_peaks_at_the_blocks_held(
        layout: Callable[[Mapping[str, Tensor], Path], Path], tmp_path: Path) -> None:
    options = {**FAMILIES['wan'], 'heads': 10, 'ffn': 1280, 'blocks': 24}
    shape = wan.read(options)
    shapes = parameter_shapes(lambda held: wan.Wan(shape, held), range(24))
    weights = {name: torch.zeros(size) for name, size in shapes.items()}
    if layout is distilled:
        by_name = {part.name: name for name in original_wan_names(24)
                   for part in wan.KEYS.parts(name)}
        torch.save({'generator_ema': {f'model._fsdp_wrapped_module.{by_name[name]}': tensor
                                      for name, tensor in weights.items()}},
                   tmp_path / 'model.pt')
        file = tmp_path / 'model.pt'
    else:
        file = one_file(weights, tmp_path)
    argument = json.dumps([{**options, 'weights': str(file)}, [3, 17]])
    peak, held = json.loads(subprocess.run(
        [sys.executable, '-c', _MEASURE, argument], capture_output=True, text=True, check=True
    ).stdout)
    total = sum(tensor.nbytes for tensor in weights.values())
    # A torch file is mapped: the pages that were read count once more.
    assert 2 * held + 16e6 < total / 3
    assert peak < 2 * held + 16e6, (peak, held, total)
