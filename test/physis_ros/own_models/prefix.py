"""A model for real-time chunking, as far as a node sees it: it wants to know what was promised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from physis_core.errors import InputError
from physis_core.graph import StageGraph
from physis_core.models.protocol import ModelDescription, StageModel, TensorSpec
from physis_core.units import OutputSemantics


def describe(options: Mapping[str, Any]) -> ModelDescription:
    """Joints and a prefix of two points in, eight points of six joints out."""
    return ModelDescription(
        name='own_models.prefix', graph=StageGraph(1, 1), tokens=1, dim=1, kv_heads=1, head_dim=1,
        latent=TensorSpec((1,)), condition=TensorSpec((1,)),
        observation={'joints': TensorSpec((6,)), 'prefix': TensorSpec((2, 6))},
        outputs={'positions': TensorSpec((8, 6))},
        semantics=OutputSemantics(control_points_per_latent=8, control_period_s=0.02))


def build(options: Mapping[str, Any], blocks: Collection[int] | None = None) -> StageModel:
    """There are no weights: the engine of these tests is played by the test."""
    raise InputError('own_models.prefix is only described; it cannot be run')
