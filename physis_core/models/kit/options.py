"""Options of a model, checked against the dataclass that describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from physis_core.errors import InputError

Options = TypeVar('Options')


def read_options(kind: type[Options], options: Mapping[str, Any], model: str) -> Options:
    """Make the dataclass ``kind`` from ``options``.

    Raises:
        InputError: an option that ``kind`` does not have, or one of another type.
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name, value in options.items():
        if name not in known:
            raise InputError(f'model `{model}` has no option `{name}`; it has {", ".join(known)}')
        default = known[name].default
        wanted = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
            raise InputError(f'option `{name}` of model `{model}` is {value!r}; '
                             f'give a value like {default!r}')
    return kind(**options)
