"""Shapes of published models, one YAML file each, named like the model."""

from __future__ import annotations

from pathlib import Path

from physis_core.errors import InputError
from physis_core.fields import from_mapping, read_yaml
from physis_core.models.shape import ModelShape

_FOLDER = Path(__file__).parent


def preset_names() -> list[str]:
    """The names that :func:`load_preset` knows, sorted."""
    return sorted(path.name[:-len('.yaml')] for path in _FOLDER.glob('*.yaml'))


def load_preset(name: str) -> ModelShape:
    """The shape of a published model.

    Raises:
        InputError: the name is not known.
    """
    if name not in preset_names():
        raise InputError(f'model `{name}` has no preset; choose one of '
                         f'{", ".join(preset_names())}, or measure it '
                         f'(`physis profile {name} --out FILE`) and plan with `--profile FILE`')
    path = _FOLDER / f'{name}.yaml'
    return from_mapping(ModelShape, {'name': name, **read_yaml(path)}, path.name)
