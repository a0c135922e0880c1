"""A model that takes for ever to load; the file of option `marker` says who is loading it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from physis_core.graph import StageGraph
from physis_core.models.protocol import ModelDescription, StageModel, TensorSpec
from physis_core.units import OutputSemantics


def describe(options: Mapping[str, Any]) -> ModelDescription:
    """Joints in, eight points of six joints out."""
    return ModelDescription(
        name='own_models.slow', graph=StageGraph(1, 1), tokens=1, dim=1, kv_heads=1, head_dim=1,
        latent=TensorSpec((1,)), condition=TensorSpec((1,)),
        observation={'joints': TensorSpec((6,))}, outputs={'positions': TensorSpec((8, 6))},
        semantics=OutputSemantics(control_points_per_latent=8, control_period_s=0.02))


def build(options: Mapping[str, Any], blocks: Collection[int] | None = None) -> StageModel:
    """Never returns."""
    marker = Path(options['marker'])
    marker.with_suffix('.draft').write_text(str(os.getpid()))
    marker.with_suffix('.draft').rename(marker)
    while True:
        time.sleep(60.0)
