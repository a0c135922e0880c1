"""Costs from shapes: the published table, and the demo model's own description."""

import pytest

from physis_core.errors import InputError
from physis_core.models import registry
from physis_core.models.presets import load_preset, preset_names
from physis_core.planning.cost import (
    hop_bytes,
    kv_bytes,
    stage_flops,
    stage_us,
    weight_bytes,
)
from physis_core.planning.devices import load_device


@pytest.mark.parametrize('name, tokens, tflop, weights_mb, kv_mb, stream_gb, hop_mb', [
    ('wan2.1-1.3b', 4680, 1.347, 93, 201, 24.2, 14.4),
    ('wan2.2-5b', 880, 0.431, 327, 195, 23.4, 5.4),
    ('wan2.1-14b', 4680, 3.893, 703, 224, 35.8, 47.9),
    ('ltx-2.x', 1530, 1.000, 537, 175, 33.7, 12.5),
    ('h3', 1008, 1.301, 771, 520, 104.0, 10.8),
])
def test_costs_of_the_five_backbones(name, tokens, tflop, weights_mb, kv_mb, stream_gb, hop_mb):
    shape = load_preset(name)
    assert shape.tokens == tokens
    assert stage_flops(shape) / 1e12 == pytest.approx(tflop, abs=0.0006)
    assert weight_bytes(shape) / 1e6 == pytest.approx(weights_mb, abs=0.6)
    assert kv_bytes(shape) / 1e6 == pytest.approx(kv_mb, abs=0.6)
    assert kv_bytes(shape) * shape.graph.stages / 1e9 == pytest.approx(stream_gb, abs=0.06)
    assert hop_bytes(shape) / 1e6 == pytest.approx(hop_mb, abs=0.06)


def test_stage_time_is_affine_on_an_h100():
    shape, device = load_preset('wan2.1-1.3b'), load_device('h100')
    assert stage_us(shape, device, 1) == pytest.approx(800 + 2105, abs=1)
    assert stage_us(shape, device, 8) == pytest.approx(800 + 8 * 2105, abs=5)


def test_every_preset_is_complete():
    for name in preset_names():
        shape = load_preset(name)
        semantics = shape.semantics
        assert semantics.frames_per_chunk or semantics.control_points_per_chunk
        assert shape.graph.window_chunks >= 1


def test_output_semantics():
    assert load_preset('wan2.1-1.3b').semantics.frames_per_latent == 4
    assert load_preset('ltx-2.x').semantics.frames_per_latent == 8
    assert load_preset('h3').semantics.frames_per_latent == pytest.approx(17 / 5)
    assert load_preset('lingbot-va').semantics.control_points_per_latent == 16
    assert load_preset('dreamzero').semantics.control_points_per_chunk == 24


def test_demo_preset_is_the_demo_model():
    shape = load_preset('so101')
    described = registry.describe(registry.ModelSpec('so101'))
    assert shape.graph == described.graph
    assert shape.semantics == described.semantics
    assert (shape.tokens, shape.dim, shape.dtype) == (
        described.tokens, described.dim, described.dtype)
    assert shape.inner == described.kv_heads * described.head_dim
    assert hop_bytes(shape) == described.hidden.nbytes


def test_unknown_names():
    with pytest.raises(InputError, match=r'`wan3` has no preset; choose one of .*wan2\.1-1\.3b'):
        load_preset('wan3')
    with pytest.raises(InputError, match='`b300` is not described; choose one of a100'):
        load_device('b300')
