"""Models by name: one of ours, or the name of any other module that can be imported.

Such a module offers ``describe(options) -> ModelDescription``, which touches no weights, and
``build(options, blocks) -> StageModel``, which loads only the blocks asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from physis_core.errors import InputError, PhysisError, told
from physis_core.models.protocol import ModelDescription, StageModel

_MODULES = {
    'so101': 'physis_core.models.so101.stages',
    'dit': 'physis_core.models.dit',
    'dreamzero': 'physis_core.models.dreamzero',
    'h3': 'physis_core.models.h3',
    'lingbot': 'physis_core.models.lingbot',
    'ltx': 'physis_core.models.ltx',
    'wan': 'physis_core.models.wan',
}


@dataclass(frozen=True)
class ModelSpec:
    """A model's name and options: small, serialisable, the same on every machine."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({'name': self.name, 'options': dict(self.options)})

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """The inverse of :meth:`to_json`."""
        data = json.loads(text)
        return cls(data['name'], data['options'])


def model_names() -> list[str]:
    """The registered names, sorted."""
    return sorted(_MODULES)


def is_module(name: str) -> bool:
    """Whether there is a module of that name; of a dotted one, the packages are imported."""
    if not all(part.isidentifier() for part in name.split('.')):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # no such package; no spec (`__main__`)
        return False
    except Exception:  # its package is somebody else's code; importing the model says it
        return True


def describe(spec: ModelSpec) -> ModelDescription:
    """The model's description; no weights are read."""
    with _theirs(spec.name, 'describe'):
        description = _module(spec.name).describe(spec.options)
    if not isinstance(description, ModelDescription):
        raise InputError(f'model `{spec.name}`: describe() returned {type(description).__name__}; '
                         'it returns a ModelDescription')
    return description


def build(spec: ModelSpec, blocks: Collection[int] | None = None) -> StageModel:
    """The model with the weights of ``blocks`` (None: all), of embedding and of head."""
    with _theirs(spec.name, 'build'):
        model: StageModel = _module(spec.name).build(spec.options, blocks)
    return model


@contextmanager
def _theirs(name: str, what: str) -> Iterator[None]:
    """Whatever the code of a model raises, in one sentence.

    Raises:
        InputError: with the line at fault.
    """
    try:
        yield
    except PhysisError:
        raise
    except Exception as error:
        raise InputError(f'model `{name}`: {what} failed with {told(error)}') from error


def _module(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if not is_module(name):
        raise InputError(f'model `{name}` is not known; choose one of {", ".join(model_names())}, '
                         'or give the name of a module of your own that can be imported where the '
                         'workers run (installed, or on PYTHONPATH)')
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f'model `{name}`: {error}; install it where the workers run') from error
    except Exception as error:  # it is somebody else's code
        raise InputError(f'model `{name}` cannot be imported: {told(error)}') from error
    missing = [needed for needed in ('describe', 'build') if not hasattr(module, needed)]
    if missing:
        raise InputError(f'model `{name}` has no `{missing[0]}`; physis_core.models.registry says '
                         'what a module of a model offers')
    return module
