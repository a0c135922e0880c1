"""Noise levels of the denoising steps (rectified flow: data at 0, noise at 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from physis_core.graph import StageGraph


@dataclass(frozen=True)
class Schedule:
    """Levels before each pass over the blocks, float64 ``[passes + 1]``; the last is 0.

    The clean pass of ``clean`` models is at level 0.
    """

    levels: tuple[float, ...]

    @classmethod
    def shifted(cls, graph: StageGraph, shift: float) -> Schedule:
        """D equal steps, shifted towards noise."""
        return cls((*shifted_levels(graph.steps, shift), 0.0, 0.0))

    def times(self, passes: int) -> Tensor:
        """The level of each pass, float32 ``[passes]``."""
        return torch.tensor(self.levels[:passes])

    def next_latents(self, latents: Tensor, clean: Tensor, noises: Tensor | None, steps: Tensor
                     ) -> Tensor:
        """Latents one step on, from the latents and the clean ones predicted of them.

        With ``noises`` the clean latents get fresh noise (as consistency models sample), without
        them an Euler step keeps the noise that is there.
        """
        levels = torch.tensor(self.levels, device=latents.device)
        here, there = levels[steps], levels[steps + 1]
        weight = there if noises is not None else there / here
        other = noises if noises is not None else latents
        return torch.lerp(clean, other, weight.view(-1, *[1] * (latents.ndim - 1)))


def shifted_levels(steps: int, shift: float) -> list[float]:
    """Levels before each of ``steps`` equal steps, shifted: ``s*x / (1 + (s - 1)*x)``.

    "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis", section 5.3.2.
    """
    even = [1.0 - step / steps for step in range(steps)]
    return [shift * x / (1.0 + (shift - 1.0) * x) for x in even]
