"""Options of a model, checked against the dataclass that describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from physis_core.errors import InputError
from physis_core.fields import from_mapping
from physis_core.models.presets import load_preset

Options = TypeVar('Options')


def read_options(kind: type[Options], options: Mapping[str, Any], model: str) -> Options:
    """Make the dataclass ``kind`` from ``options``.

    Raises:
        InputError: an option that ``kind`` does not have, or a value of another type.
    """
    return from_mapping(kind, options, f'model `{model}`')


def sized_options(kind: type[Options], options: Mapping[str, Any],
                  sizes: Mapping[str, Mapping[str, Any]], model: str) -> Options:
    """The same, starting from the shape of a published model.

    Args:
        kind: a kind of :class:`~physis_core.models.kit.backbone.StreamOptions`.
        options: what differs from the size that ``options['size']`` names.
        sizes: per published size, what its preset does not say.
        model: the family's name.

    Raises:
        InputError: the size or an option is unknown, or a value has another type.
    """
    size = options.get('size', '')
    if size and size not in sizes:
        raise InputError(f'size `{size}` of model `{model}` is not known; '
                         f'choose one of {", ".join(sizes)}')
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    published = {name: value for name, value in _published(size).items() if name in names}
    return read_options(kind, {**published, **sizes.get(size, {}), **options}, model)


def _published(size: str) -> dict[str, Any]:
    if not size:
        return {}
    shape = load_preset(size)
    graph = shape.graph
    return {
        'blocks': graph.blocks, 'steps': graph.steps, 'kv_mode': graph.kv_mode.value,
        'window': graph.window_chunks, 'sinks': graph.sink_chunks,
        'latents': shape.latents_per_chunk, 'ffn': shape.ffn, 'dtype': shape.dtype,
        'control_period_s': shape.control_period_s,
    }
