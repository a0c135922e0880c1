"""Norms, modulation, feed-forward and embedding layers that the families share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class FeedForward(nn.Module):
    """Two projections around an activation; parameters are named as in diffusers.

    ``gated`` is SwiGLU ("GLU Variants Improve Transformer"), value first and gate second;
    otherwise the activation is GELU in its tanh form.
    """

    def __init__(self, dim: int, inner: int, *, bias: bool = True, gated: bool = False) -> None:
        super().__init__()
        self.net = nn.ModuleDict({
            '0': nn.ModuleDict({'proj': nn.Linear(dim, 2 * inner if gated else inner, bias)}),
            '2': nn.Linear(inner, dim, bias)})
        self._gated = gated

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., dim]`` to the same shape."""
        wide = self.net['0']['proj'](hidden)  # type: ignore[index]
        if self._gated:
            value, gate = wide.chunk(2, -1)
            wide = value * functional.silu(gate)
        else:
            wide = functional.gelu(wide, approximate='tanh')
        narrow: Tensor = self.net['2'](wide)
        return narrow


class TwoLayers(nn.Module):
    """Linear, activation, linear: embeds timesteps (SiLU) or text (GELU, tanh form)."""

    def __init__(self, inputs: int, inner: int, outputs: int, activation: str) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(inputs, inner)
        self.linear_2 = nn.Linear(inner, outputs)
        self._activation = {'silu': nn.SiLU(), 'gelu': nn.GELU('tanh')}[activation]

    def forward(self, vectors: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        embedded: Tensor = self.linear_2(self._activation(self.linear_1(vectors)))
        return embedded


def sinusoid(times: Tensor, width: int) -> Tensor:
    """Cosines, then sines, of ``times`` ``[T]`` at ``width / 2`` frequencies: ``[T, width]``.

    "Denoising Diffusion Probabilistic Models", with periods from 2 pi to 20000 pi.
    """
    half = width // 2
    slow = torch.exp(-math.log(10_000) / half * torch.arange(half, device=times.device))
    phases = times.float()[:, None] * slow
    return torch.cat([phases.cos(), phases.sin()], -1)


def layer_norm(hidden: Tensor, eps: float, norm: nn.LayerNorm | None = None) -> Tensor:
    """Layer norm computed in float32, with the affine part of ``norm`` if there is one."""
    weight, bias = (None, None) if norm is None else (norm.weight.float(), norm.bias.float())
    return functional.layer_norm(hidden.float(), hidden.shape[-1:], weight, bias, eps)


def rms_norm(hidden: Tensor, eps: float) -> Tensor:
    """RMS norm without weights, computed in float32."""
    return functional.rms_norm(hidden.float(), hidden.shape[-1:], None, eps)


def modulated(normalised: Tensor, shift: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """``normalised * scale + shift``; ``scale`` has its 1 folded in."""
    return torch.addcmul(shift, normalised, scale).to(dtype)


def gated_sum(hidden: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """``hidden + gate * update``, summed in float32."""
    return torch.addcmul(hidden.float(), gate, update.float()).to(hidden.dtype)


def folded(modulation: Tensor) -> Tensor:
    """Add 1 to the scales of ``[passes, (shift, scale[, gate]) x n, dim]``; float32."""
    table = modulation.detach().float().clone()
    table[:, 1::3] += 1.0
    return table
