"""Latents of world action models: a chunk's actions and its video in one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from physis_core.errors import InputError
from physis_core.models.protocol import TensorSpec


@dataclass(frozen=True)
class ActionLatent:
    """The parts of a flat latent.

    Attributes:
        actions: shape ``[control points, joints]``.
        video: shape ``[channels, latents, height, width]``.
    """

    actions: tuple[int, int]
    video: tuple[int, int, int, int]

    @property
    def spec(self) -> TensorSpec:
        """The flat latent."""
        return TensorSpec((TensorSpec(self.actions).elements + TensorSpec(self.video).elements,))

    def split(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, n]`` to actions ``[B, points, joints]`` and video ``[B, channels, t, h, w]``."""
        actions, video = flat.split(
            (TensorSpec(self.actions).elements, TensorSpec(self.video).elements), -1)
        return actions.unflatten(-1, self.actions), video.unflatten(-1, self.video)

    def join(self, actions: Tensor, video: Tensor) -> Tensor:
        """The inverse of :meth:`split`."""
        return torch.cat([actions.flatten(1), video.flatten(1)], -1)


def observed(observation: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec], model: str
             ) -> Tensor:
    """An observation as one flat vector, its parts in the order of ``specs``.

    Raises:
        InputError: a part is missing, has another shape or is not finite.
    """
    parts = []
    for name, spec in specs.items():
        if name not in observation:
            raise InputError(f'observation lacks `{name}`; {model} needs {spec.shape} {spec.dtype}')
        part = np.asarray(observation[name], np.float32)
        if part.shape != spec.shape:
            raise InputError(f'observation `{name}` has shape {part.shape}; {model} needs '
                             f'{spec.shape}')
        if not np.isfinite(part).all():
            raise InputError(f'observation `{name}` has values that are not finite; repair its '
                             'source')
        parts.append(torch.from_numpy(part).flatten())
    return torch.cat(parts)
