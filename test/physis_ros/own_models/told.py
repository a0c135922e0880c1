"""A model that feels and is told, as far as a node sees it: its text is an observation or a prompt.

Options: ``prompt`` (the text is one), ``text_type``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from physis_core.errors import InputError
from physis_core.graph import StageGraph
from physis_core.models.protocol import ModelDescription, StageModel, TensorSpec
from physis_core.units import OutputSemantics


def describe(options: Mapping[str, Any]) -> ModelDescription:
    """Joints, a wrench and a text in, eight points of six joints out."""
    text = {'words': TensorSpec((24,), str(options.get('text_type', 'uint8')))}
    observation = {'joints': TensorSpec((6,)), 'touch': TensorSpec((6,))}
    return ModelDescription(
        name='own_models.told', graph=StageGraph(1, 1), tokens=1, dim=1, kv_heads=1, head_dim=1,
        latent=TensorSpec((1,)), condition=TensorSpec((1,)),
        observation=observation if options.get('prompt') else {**observation, **text},
        prompt=text if options.get('prompt') else {},
        outputs={'positions': TensorSpec((8, 6))},
        semantics=OutputSemantics(control_points_per_latent=8, control_period_s=0.02))


def build(options: Mapping[str, Any], blocks: Collection[int] | None = None) -> StageModel:
    """There are no weights: the engine of these tests is played by the test."""
    raise InputError('own_models.told is only described; it cannot be run')
