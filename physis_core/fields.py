"""Frozen dataclasses from mappings that people write: every typo is named."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from physis_core.errors import InputError

T = TypeVar('T')

_PLAIN = {int: 'a whole number', float: 'a number', str: 'a text', bool: 'true or false'}


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file.

    Raises:
        InputError: no such file, not YAML, or not a mapping.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f'{path} cannot be read ({error}); give a readable YAML file') from error
    except yaml.YAMLError as error:
        raise InputError(f'{path} is not YAML ({error}); correct it there') from error
    if not isinstance(data, Mapping):
        raise InputError(f'{path} holds {type(data).__name__}, not `key: value` lines; write those')
    return data


def from_mapping(cls: type[T], data: object, where: str) -> T:
    """A dataclass of plain fields from a mapping; ``where`` says whose keys they are.

    Raises:
        InputError: a key is unknown or missing, or a value has another type.
    """
    if not isinstance(data, Mapping):
        raise InputError(f'{where} is {data!r}; it must be a mapping of `key: value`')
    fields = {field.name: field for field in dataclasses.fields(cls)  # type: ignore[arg-type]
              if field.init}
    check_keys(data, fields, where)
    for name, field in fields.items():
        optional = (field.default is not dataclasses.MISSING
                    or field.default_factory is not dataclasses.MISSING)
        if name not in data and not optional:
            raise InputError(f'{where} lacks `{name}`; add it')
    hints = get_type_hints(cls)
    return cls(**{name: _checked(value, hints[name], f'{where}: `{name}`')
                  for name, value in data.items()})


def check_keys(data: Mapping[str, Any], allowed: Mapping[str, Any], where: str) -> None:
    """Refuse keys that are not allowed, and say which one was probably meant."""
    for name in data:
        if name not in allowed:
            close = difflib.get_close_matches(str(name), allowed, n=1)
            meant = f'did you mean `{close[0]}`?' if close else f'choose of {", ".join(allowed)}'
            raise InputError(f'{where} has the unknown key `{name}`; {meant}')


def _checked(value: Any, kind: Any, where: str) -> Any:
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f'{where} is {value!r}; it must be a list')
        return tuple(_checked(one, get_args(kind)[0], where) for one in value)
    plain = [one for one in get_args(kind) or (kind,) if one in _PLAIN]
    if not plain or (value is None and type(None) in get_args(kind)):
        return value
    kind = plain[0]
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise InputError(f'{where} is {value!r}; it must be {_PLAIN[kind]}')
    return value
