"""A model of somebody's own with one mistake, which ``options['fault']`` names."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.graph import StageGraph
from physis_core.models.protocol import History, ModelDescription, TensorSpec

TOKENS, DIM = 4, 6


def describe(options: Mapping[str, Any]) -> ModelDescription:
    """Two steps, two blocks."""
    if options.get('fault') == 'describe':
        raise KeyError('size')
    return ModelDescription(
        'faulty_model', StageGraph(steps=2, blocks=2, window_chunks=2), tokens=TOKENS, dim=DIM,
        kv_heads=1, head_dim=DIM, latent=TensorSpec((TOKENS, DIM)), condition=TensorSpec((DIM,)),
        observation={'joints': TensorSpec((DIM,))},
        outputs={'positions': TensorSpec((TOKENS, DIM))},
        prompt={'mark': TensorSpec((1,))}, late_binding=options.get('late_binding', False))


def build(options: Mapping[str, Any], blocks: Collection[int] | None = None) -> FaultyModel:
    """The model."""
    if options.get('fault') == 'build':
        raise RuntimeError('no such file')
    if 'weights' in options:
        Path(options['weights']).read_bytes()
    if options.get('fault') == 'end' and Path(options['while']).exists():
        threading.Timer(0.05, os._exit, (3,)).start()
    return FaultyModel(options)


class FaultyModel:
    """Adds the joints; a prompt above 0 brings the mistake to that stream alone."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.description = describe(options)
        self._fault = options.get('fault', '')
        self._wait_s = options.get('wait_s')

    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> torch.Tensor:
        """The joints, or too few."""
        joints = torch.tensor(observation['joints'])
        return joints[:1] if self._fault == 'encode' and joints[0] > 0 else joints

    def context(self, prompt: Mapping[str, np.ndarray]) -> bool:
        """Whether this stream is hit."""
        hit = bool(prompt['mark'][0] > 0)
        if hit and self._fault == 'context':
            raise LookupError('no such word')
        return hit

    def embed(self, latents: torch.Tensor, conditions: torch.Tensor, steps: torch.Tensor
              ) -> torch.Tensor:
        """Latents and joints."""
        if self._fault == 'embed' and conditions.max() > 0:
            raise ZeroDivisionError('in embed')
        return latents + conditions[:, None]

    def block(self, block: int, hidden: torch.Tensor, steps: torch.Tensor, history: History,
              contexts: Sequence[Any]) -> torch.Tensor:
        """Half of what came."""
        kv = hidden[:, :, None]
        if any(contexts) and self._fault == 'extend':
            kv = kv[:, :1]
        history.extend(kv, kv)
        if any(contexts) and self._fault == 'block':
            raise RuntimeError('shapes cannot be multiplied\n(4x6 and 5x6)')
        if any(contexts) and self._fault == 'wait':
            threading.Event().wait(self._wait_s)
        while any(contexts) and self._fault == 'spin':
            pass
        return hidden[:, :1] if any(contexts) and self._fault == 'shape' else hidden / 2

    def step_update(self, hidden: torch.Tensor, latents: torch.Tensor, conditions: torch.Tensor,
                    noises: torch.Tensor | None, steps: torch.Tensor) -> torch.Tensor:
        """The mean."""
        cleaner = (latents + hidden) / 2
        return cleaner[..., :1] if self._fault == 'step' and conditions.max() > 0 else cleaner

    def decode(self, latent: torch.Tensor, condition: torch.Tensor) -> dict[str, np.ndarray]:
        """The latent."""
        hit = bool(condition.max() > 0)
        if hit and self._fault == 'decode':
            raise ValueError('cannot decode')
        if hit and self._fault == 'name':
            return {'actions': latent.numpy()}
        if hit and self._fault == 'output':
            return {'positions': latent.numpy()[:1]}
        return {'positions': latent.numpy().copy()}
