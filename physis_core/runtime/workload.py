"""What an engine runs: a registered model, or a virtual one that only takes time."""

from __future__ import annotations

import json

from physis_core.models.protocol import ModelDescription
from physis_core.models.registry import ModelSpec, describe
from physis_core.runtime.virtual import VirtualModel

Workload = ModelSpec | VirtualModel


def description_of(workload: Workload) -> ModelDescription:
    """Its description, without loading anything."""
    if isinstance(workload, VirtualModel):
        return workload.description
    return describe(workload)


def workload_to_json(workload: Workload) -> str:
    """One line of JSON."""
    kind = 'virtual' if isinstance(workload, VirtualModel) else 'model'
    return json.dumps({kind: workload.to_json()})


def workload_from_json(text: str) -> Workload:
    """The inverse of :func:`workload_to_json`."""
    data = json.loads(text)
    if 'virtual' in data:
        return VirtualModel.from_json(data['virtual'])
    return ModelSpec.from_json(data['model'])
