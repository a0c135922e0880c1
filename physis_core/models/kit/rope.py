"""Rotary positions, split into a rotation inside the chunk and one by the chunk's position.

Rotations add up: a token of latent ``f`` in the chunk at position ``p`` turns by the angle of
``f`` and by the angle of ``p``.  Keys are kept with the first rotation only, so that what is kept
does not depend on where in the window the chunk will stand; the second is applied to what is
attended to.  "RoFormer: Enhanced Transformer with Rotary Position Embedding", in three axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Rotate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rope:
    """The rotary positions of one model.

    Attributes:
        inside: factors inside a chunk, complex ``[2, tokens, heads or 1, half]``; row 1 is for
            the first chunk of a stream (where a model places its first latent differently).
        chunk: factors by the position of a chunk, complex ``[positions, 1, heads or 1, half]``.
        own: the same for each token of a row's own chunk, ``[positions, tokens or 1, ...]``:
            tokens that are not kept as history may turn differently.
        rotate: :func:`rotate_pairs` or :func:`rotate_halves`.
    """

    inside: Tensor
    chunk: Tensor
    own: Tensor
    rotate: Rotate

    @classmethod
    def from_angles(cls, inside: Tensor, chunk: Tensor, rotate: Rotate, *,
                    first: Tensor | None = None, own: Tensor | None = None) -> Rope:
        """Make the factors of angles.

        Args:
            inside: ``[tokens, heads or 1, half]``.
            chunk: ``[positions, 1, heads or 1, half]``.
            rotate: how channels are paired.
            first: ``inside`` for the first chunk of a stream; None: the same.
            own: ``[positions, tokens, heads or 1, half]``; None: as ``chunk``.
        """
        both = torch.stack([inside, inside if first is None else first])
        by_position = _factors(chunk)
        return cls(_factors(both), by_position, by_position if own is None else _factors(own),
                   rotate)

    def place_inside(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Turn queries or keys ``[B, tokens, heads, head_dim]`` by their place in the chunk."""
        return self.rotate(vectors, self.inside[(positions[:, 0] == 0).long()])

    def place_own(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Turn what :meth:`place_inside` gave by the position of the row's own chunk."""
        return self.rotate(vectors, self.own[positions[:, 0]][:, :vectors.shape[1]])

    def place_chunks(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Turn ``[B, chunks * tokens, heads, head_dim]`` by chunk positions ``[B, chunks]``."""
        by_chunk = vectors.unflatten(1, (positions.shape[1], -1))
        return self.rotate(by_chunk, self.chunk[positions]).flatten(1, 2)


def frequencies(width: int, theta: float) -> Tensor:
    """``theta ** (-2 i / width)`` for the ``width / 2`` pairs of an axis, float64."""
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64, device='cpu') / width)


def grid(*axes: Sequence[float] | Tensor) -> Tensor:
    """Coordinates ``[product of lengths, axes]`` of a grid, the last axis fastest, float64."""
    ticks = [torch.as_tensor(axis, dtype=torch.float64, device='cpu') for axis in axes]
    return torch.stack([ticks.flatten() for ticks in torch.meshgrid(*ticks, indexing='ij')], -1)


def rotate_pairs(vectors: Tensor, turns: Tensor) -> Tensor:
    """Rotate channels (2i, 2i + 1) of ``[..., head_dim]`` by ``[..., head_dim / 2]``."""
    pairs = torch.view_as_complex(vectors.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(vectors.dtype)


def rotate_halves(vectors: Tensor, turns: Tensor) -> Tensor:
    """Rotate channels (i, i + half) of ``[..., head_dim]`` by ``[..., half]``; the rest stays."""
    half = turns.shape[-1]
    first, second, rest = vectors.float().split(
        (half, half, vectors.shape[-1] - 2 * half), -1)
    return torch.cat([first * turns.real - second * turns.imag,
                      second * turns.real + first * turns.imag, rest], -1).to(vectors.dtype)


def _factors(angles: Tensor) -> Tensor:
    angles = angles.to(torch.get_default_device())
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
