"""Full-size key sets and shapes, on the meta device: names of the files, counts, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from independent import diffusers_class

from physis_core.models import dreamzero, h3, lingbot, ltx, wan
from physis_core.models.kit.backbone import Backbone
from physis_core.models.loading import KeyMap, parameter_shapes
from physis_core.models.presets import load_preset
from physis_core.models.registry import ModelSpec, describe

Shapes = Mapping[str, tuple[int, ...]]
MODULES: Mapping[str, tuple[Any, type[Backbone]]] = {
    'wan': (wan, wan.Wan), 'ltx': (ltx, ltx.Ltx), 'h3': (h3, h3.H3),
    'lingbot': (lingbot, lingbot.Lingbot), 'dreamzero': (dreamzero, dreamzero.Dreamzero)}
WAN_SIZES = {'wan2.1-1.3b': (12, 8960, 30, 16), 'wan2.1-14b': (40, 13824, 40, 16),
             'wan2.2-5b': (24, 14336, 30, 48)}


def ours(family: str, size: str) -> Shapes:
    module, kind = MODULES[family]
    options = module.read({'size': size})
    return parameter_shapes(lambda held: kind(options, held), range(options.blocks))


def theirs(name: str, **options: Any) -> Shapes:
    kind = diffusers_class(name)
    with torch.device('meta'):
        return {key: tuple(value.shape) for key, value in kind(**options).state_dict().items()}


def mapped(keys: KeyMap, names: Iterable[str]) -> list[str]:
    """The model's names that stored names stand for."""
    return [part.name for name in names for part in keys.parts(name)]


@pytest.mark.parametrize(('size', 'count'), [
    ('wan2.1-1.3b', 825), ('wan2.1-14b', 1095), ('wan2.2-5b', 825)])
def test_wan_has_the_published_keys_and_shapes(size: str, count: int) -> None:
    heads, ffn, blocks, channels = WAN_SIZES[size]
    shapes = ours('wan', size)
    assert len(shapes) == count
    assert shapes == theirs('WanTransformer3DModel', num_attention_heads=heads, ffn_dim=ffn,
                            num_layers=blocks, in_channels=channels, out_channels=channels)


@pytest.mark.parametrize(('size', 'count'), [('wan2.1-1.3b', 825), ('wan2.1-14b', 1095)])
def test_original_wan_names_map_to_the_same_keys(size: str, count: int) -> None:
    names = list(original_wan_names(WAN_SIZES[size][2]))
    assert len(names) == count
    assert sorted(mapped(wan.KEYS, names)) == sorted(ours('wan', size))
    prefixed = [f'model._fsdp_wrapped_module.{name}' for name in names]
    assert mapped(wan.KEYS, prefixed) == mapped(wan.KEYS, names)
    utilities = pytest.importorskip('diffusers.loaders.single_file_utils')
    converted = utilities.convert_wan_transformer_to_diffusers(
        {name: torch.empty(0) for name in names})
    assert list(converted) == mapped(wan.KEYS, names)


def original_wan_names(blocks: int) -> Iterable[str]:
    """Names as in the files of Wan 2.1's authors."""
    linear = [*(f'{layer}.{index}' for layer in ('time_embedding', 'text_embedding')
                for index in (0, 2)), 'patch_embedding', 'time_projection.1', 'head.head']
    yield 'head.modulation'
    for block in range(blocks):
        yield f'blocks.{block}.modulation'
        for attention in ('self_attn', 'cross_attn'):
            linear += [f'blocks.{block}.{attention}.{layer}' for layer in 'qkvo']
            yield f'blocks.{block}.{attention}.norm_q.weight'
            yield f'blocks.{block}.{attention}.norm_k.weight'
        linear += [f'blocks.{block}.{layer}' for layer in ('norm3', 'ffn.0', 'ffn.2')]
    for layer in linear:
        yield f'{layer}.weight'
        yield f'{layer}.bias'


def test_models_made_from_an_image_have_its_keys_too() -> None:
    options = wan.read({'size': 'wan2.1-14b', 'image_tokens': 257})
    shapes = parameter_shapes(lambda held: wan.Wan(options, held), range(40))
    assert shapes == theirs(
        'WanTransformer3DModel', num_attention_heads=40, ffn_dim=13824, num_layers=40,
        in_channels=36, out_channels=16, image_dim=1280, added_kv_proj_dim=5120)
    names = [*original_wan_names(40), *(f'img_emb.proj.{layer}.{kind}' for layer in (0, 1, 3, 4)
                                        for kind in ('weight', 'bias'))]
    for block in range(40):
        attention = f'blocks.{block}.cross_attn'
        names += [f'{attention}.{layer}_img.{kind}' for layer in 'kv'
                  for kind in ('weight', 'bias')]
        names.append(f'{attention}.norm_k_img.weight')
    assert sorted(mapped(wan.KEYS, names)) == sorted(shapes)


def test_ltx_takes_the_video_stream_of_the_published_keys() -> None:
    shapes = ours('ltx', 'ltx-2.x')
    published = theirs('LTX2VideoTransformer3DModel')
    assert (len(shapes), len(published)) == (1215, 3510)
    kept = set(mapped(ltx.KEYS, published))
    assert kept == set(shapes)
    assert shapes == {name: published[name] for name in kept}


def test_ltx_2_3_has_gates_and_modulated_prompts() -> None:
    options = ltx.read({'size': 'ltx-2.x', 'gated': True, 'prompt_modulation': True,
                        'text_projection': False, 'text_dim': 4096, 'blocks': 1})
    shapes = parameter_shapes(lambda held: ltx.Ltx(options, held), [0])
    published = theirs('LTX2VideoTransformer3DModel', gated_attn=True, cross_attn_mod=True,
                       use_prompt_embeddings=False, num_layers=1)
    assert shapes == {name: published[name] for name in mapped(ltx.KEYS, published)}


def test_original_ltx_names_map_to_the_same_keys() -> None:
    utilities = pytest.importorskip('diffusers.loaders.single_file_utils')
    shapes = ours('ltx', 'ltx-2.x')
    originals = [_original_ltx(name) for name in shapes]
    assert mapped(ltx.KEYS, originals) == list(shapes)
    converted = utilities.convert_ltx2_transformer_to_diffusers(
        {name: torch.empty(0) for name in originals})
    assert set(converted) == set(shapes)


def _original_ltx(name: str) -> str:
    for new, old in (('proj_in.', 'patchify_proj.'), ('time_embed.', 'adaln_single.'),
                     ('.norm_q.', '.q_norm.'), ('.norm_k.', '.k_norm.')):
        name = name.replace(new, old)
    return f'model.diffusion_model.{name}'


def test_h3_takes_the_published_keys_without_audio() -> None:
    shapes = ours('h3', 'h3')
    published = theirs('MiniMaxH3Transformer3DModel')
    assert (len(shapes), len(published)) == (634, 638)
    assert shapes == {name: published[name] for name in mapped(h3.key_map(h3.read({})), published)}


def test_original_h3_names_map_to_the_same_keys() -> None:
    names = list(original_h3_names(50, 2))
    assert len(names) == 535  # projections are fused, and the buffer of frequencies is stored
    assert sorted(mapped(h3.key_map(h3.read({'size': 'h3'})), names)) == sorted(ours('h3', 'h3'))


def original_h3_names(blocks: int, refiner_blocks: int) -> Iterable[str]:
    """Names as in the files of H3's authors."""
    stacks = [*(f'blocks.{block}' for block in range(blocks)),
              *(f'token_refiner.blocks.{block}' for block in range(refiner_blocks))]
    for stack in stacks:
        for name in ('norm1', 'norm2', 'attn.qkv_proj', 'attn.q_norm', 'attn.k_norm',
                     'attn.out_proj', 'mlp.fc1', 'mlp.fc2'):
            yield f'{stack}.{name}.weight'
        if stack.startswith('blocks'):
            yield f'{stack}.adaln_proj.linear.weight'
            yield f'{stack}.adaln_proj.linear.bias'
    for name in ('video_patch_proj', 'audio_patch_proj', 'condition_proj', 'time_embedder.proj_in',
                 'time_embedder.proj_out', 'final_layer.adaln_proj.linear',
                 'final_layer.video_out', 'final_layer.audio_out'):
        yield f'{name}.weight'
        yield f'{name}.bias'
    yield from ('token_refiner.final_norm.weight', 'final_layer.norm.weight', 'rope.inv_freq')


@pytest.mark.parametrize(('family', 'size', 'count', 'backbone'), [
    ('lingbot', 'lingbot-va', 835, 'wan2.2-5b'), ('dreamzero', 'dreamzero', 1109, 'wan2.1-14b')])
def test_wams_are_a_wan_with_encoders(family: str, size: str, count: int, backbone: str) -> None:
    shapes, of_wan = ours(family, size), ours('wan', backbone)
    assert len(shapes) == count
    blocks = {name: shape for name, shape in of_wan.items() if name.startswith('blocks.')}
    assert blocks.items() <= shapes.items()


@pytest.mark.parametrize(('family', 'size'), [
    ('wan', 'wan2.1-1.3b'), ('wan', 'wan2.1-14b'), ('wan', 'wan2.2-5b'), ('ltx', 'ltx-2.x'),
    ('h3', 'h3'), ('dreamzero', 'dreamzero')])
def test_sizes_agree_with_their_presets(family: str, size: str) -> None:
    description, shape = describe(ModelSpec(family, {'size': size})), load_preset(size)
    assert description.graph == shape.graph
    assert (description.tokens, description.dim) == (shape.tokens, shape.dim)
    assert description.kv_heads * description.head_dim == shape.inner
    assert (description.dtype, description.semantics) == (shape.dtype, shape.semantics)
    text_tokens = {spec.shape[0] for spec in description.prompt.values()}
    assert text_tokens == ({shape.text_tokens} if shape.text_tokens else set())
