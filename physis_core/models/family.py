"""A family of backbones: its published sizes, and the road from options to a model with weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from physis_core.models.kit.backbone import Backbone, StreamOptions
from physis_core.models.kit.options import sized_options
from physis_core.models.loading import KeyMap, assemble
from physis_core.models.protocol import ModelDescription

Options = TypeVar('Options', bound=StreamOptions)
Model = TypeVar('Model', bound=Backbone)


@dataclass(frozen=True)
class Family(Generic[Options, Model]):
    """What the module of a family offers to :mod:`~physis_core.models.registry`.

    Attributes:
        name: in the registry.
        options: the dataclass of its options.
        sizes: per published size, what its preset does not say.
        description: of a model with these options.
        model: makes one that holds the given blocks, without weights.
        keys: names in its files.
    """

    name: str
    options: type[Options]
    sizes: Mapping[str, Mapping[str, Any]]
    description: Callable[[Options], ModelDescription]
    model: Callable[[Options, Collection[int]], Model]
    keys: Callable[[Options], KeyMap]

    def read(self, options: Mapping[str, Any]) -> Options:
        """The options of a size, changed by ``options``."""
        return sized_options(self.options, options, self.sizes, self.name)

    def describe(self, options: Mapping[str, Any]) -> ModelDescription:
        """The description of a model; no weights are read."""
        return self.description(self.read(options))

    def build(self, options: Mapping[str, Any], blocks: Collection[int] | None = None) -> Model:
        """The model with the weights of ``blocks`` (None: all), of embedding and of head."""
        shape = self.read(options)
        return assemble(lambda held: self.model(shape, held), shape.blocks, blocks, shape.weights,
                        shape.seed, self.keys(shape))
