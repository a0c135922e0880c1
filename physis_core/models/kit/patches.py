"""Latents as tokens and back."""

from __future__ import annotations

from torch import Tensor

Patch = tuple[int, int, int]


def to_patches(latents: Tensor, patch: Patch) -> Tensor:
    """``[B, channels, t, h, w]`` to ``[B, tokens, channels * patch]``, channels slowest."""
    for axis, size in enumerate(patch):
        latents = latents.unflatten(2 + 2 * axis, (-1, size))
    return latents.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)


def from_patches(tokens: Tensor, patch: Patch, latent: tuple[int, ...], *, channels_last: bool
                 ) -> Tensor:
    """The inverse of :func:`to_patches` for latents of shape ``latent`` ``[channels, t, h, w]``.

    ``channels_last``: channels are the fastest part of a token (the head of Wan).
    """
    channels, *sizes = latent
    cells = [size // part for size, part in zip(sizes, patch, strict=True)]
    if channels_last:
        grid = tokens.unflatten(-1, (*patch, channels)).movedim(-1, 2)
    else:
        grid = tokens.unflatten(-1, (channels, *patch))
    # [B, tokens, channels, pt, ph, pw]
    grid = grid.unflatten(1, cells).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return grid.flatten(6, 7).flatten(4, 5).flatten(2, 3)
