"""Models by the name people use: registered, a published size of a family, or a module."""

from __future__ import annotations

from typing import Any

from physis_core.errors import InputError
from physis_core.models import dreamzero, h3, lingbot, ltx, wan
from physis_core.models.registry import ModelSpec, is_module, model_names

FAMILY_OF = {size: family
             for family, module in (('wan', wan), ('ltx', ltx), ('h3', h3),
                                    ('lingbot', lingbot), ('dreamzero', dreamzero))
             for size in module.SIZES}


def spec_of(name: str, **options: Any) -> ModelSpec:
    """The model of that name with options changed.

    Raises:
        InputError: neither a registered model, a published size nor a module has that name.
    """
    if name in FAMILY_OF:
        return ModelSpec(FAMILY_OF[name], {'size': name, **options})
    if name in model_names() or is_module(name):
        return ModelSpec(name, options)
    raise InputError(f'model `{name}` is not known; choose one of '
                     f'{", ".join(sorted({*model_names(), *FAMILY_OF}))}, '
                     'or give the name of a module of your own (installed, or in the current '
                     'folder)')
