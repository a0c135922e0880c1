"""DreamZero: a world action model on the shape of Wan 2.1 14B ("World Action Models are Zero-shot
Policies").

A chunk is two latents of video, 24 actions and the robot's state, denoised together: every token
sees every other.  Later chunks see the video alone, as it was clean: the clean pass reads the
frames really observed.  Before the first clean pass the model has seen nothing: the output of an
epoch's first chunk is not meant to be executed, unless an image shows it the scene (checkpoints
made from an image-to-video model: option `image_tokens`, published as 257).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models.family import Family
from physis_core.models.kit.action_latent import ActionLatent, observed
from physis_core.models.kit.layers import sinusoid
from physis_core.models.kit.rope import Rope, frequencies, rotate_pairs
from physis_core.models.loading import KeyMap
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.models.wan import (
    FRAMES_PER_LATENT,
    KEYS,
    TIMES,
    Wan,
    WanOptions,
    wan_angles,
)
from physis_core.units import OutputSemantics

SIZES: dict[str, dict[str, Any]] = {
    'dreamzero': {'heads': 40, 'channels': 16, 'height': 44, 'width': 80},
}
DREAMZERO_KEYS = KeyMap(((r'^action_head\.model\.', ''), *KEYS.renames), ignored=KEYS.ignored)


@dataclass(frozen=True, kw_only=True)
class DreamzeroOptions(WanOptions):
    """Options of the `dreamzero` model.

    Attributes:
        actions: control points of a chunk.
        action_dim: joints of a control point.
        state_dim: numbers of the robot's state.
        inner: inner width of the state encoder and of the action decoder.
        embodiments: robots that the checkpoint has encoders and decoders for.
        embodiment: the robot to use.
        control_period_s: time between control points [s].
    """

    kv_mode: str = KVMode.CLEAN.value
    renoise: bool = False
    latents: int = 2
    actions: int = 24
    action_dim: int = 32
    state_dim: int = 64
    inner: int = 1024
    embodiments: int = 1
    embodiment: int = 0
    control_period_s: float = 1 / 30

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.embodiment < self.embodiments:
            raise InputError(f'embodiment is {self.embodiment}; the checkpoint has '
                             f'{self.embodiments}, counted from 0')
        if self.kv_mode != KVMode.CLEAN.value or self.renoise:
            raise InputError('model `dreamzero` remembers real observations and takes Euler '
                             'steps: leave kv_mode at `clean` and renoise at false')

    @property
    def registers(self) -> int:
        """Tokens of actions and state, the first of a chunk."""
        return self.actions + 1

    @property
    def parts(self) -> ActionLatent:
        """The parts of a latent."""
        return ActionLatent((self.actions, self.action_dim), self.latent)


class Embodied(nn.Module):
    """A linear layer per embodiment: ``W`` ``[embodiments, inputs, outputs]`` and ``b``."""

    def __init__(self, options: DreamzeroOptions, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(options.embodiments, inputs, outputs))
        self.b = nn.Parameter(torch.empty(options.embodiments, outputs))
        self._embodiment = options.embodiment

    def forward(self, vectors: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        return vectors @ self.W[self._embodiment] + self.b[self._embodiment]


class Dreamzero(Wan):
    """The whole denoiser: Wan, with encoders and a decoder for actions and state."""

    options: DreamzeroOptions

    def __init__(self, options: DreamzeroOptions, held: Collection[int]) -> None:
        super().__init__(options, held)
        self.description = _description(options)
        dim, dtype = options.dim, self.dtype
        self.state_encoder = nn.ModuleDict({
            'layer1': Embodied(options, options.state_dim, options.inner),
            'layer2': Embodied(options, options.inner, dim)}).to(dtype)
        self.action_encoder = nn.ModuleDict({
            'W1': Embodied(options, options.action_dim, dim),
            'W2': Embodied(options, 2 * dim, dim),
            'W3': Embodied(options, dim, dim)}).to(dtype)
        self.action_decoder = nn.ModuleDict({
            'layer1': Embodied(options, dim, options.inner),
            'layer2': Embodied(options, options.inner, options.action_dim)}).to(dtype)

    def settle(self) -> None:
        """What Wan settles, the positions of actions and state, and the actions' times."""
        super().settle()
        options = self.options
        levels = self.schedule.times(self.description.graph.passes).to(self._device)
        cosines, sines = sinusoid(TIMES * levels, options.dim).chunk(2, -1)
        self._action_times = torch.cat([sines, cosines], -1).to(self.dtype)
        self.rope = _rope(options, self.description.graph.history_slots)

    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> Tensor:
        """The robot's state and the frames seen since the previous chunk."""
        return observed(observation, self.description.observation, 'dreamzero').to(self._device)

    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """Actions, state and video as ``[B, tokens, dim]``; for the clean pass, the real video."""
        options = self.options
        actions, video = options.parts.split(latents)
        frames_size = TensorSpec(options.latent).elements
        state, frames, image = conditions.split(
            (options.state_dim, frames_size,
             conditions.shape[-1] - options.state_dim - frames_size), -1)
        clean = (steps == options.steps).view(-1, 1, 1, 1, 1)
        video = torch.where(clean, frames.view_as(video), video)
        return torch.cat([self._action_tokens(actions.to(self.dtype), steps),
                          self._state_token(state.to(self.dtype)).unsqueeze(1),
                          super().embed(video, image, steps)], 1)

    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block; the video of a clean pass does not see actions and state."""
        weights = self._block(block)
        options = self.options
        seen = (steps < options.steps).view(-1, 1, 1, 1).expand(-1, -1, -1, options.registers)
        return weights.forward(
            hidden, weights.modulation[steps],
            lambda attention, inner: attention.with_history(
                inner, history, self.rope, registers=options.registers, seen=seen),
            [context[block] for context in contexts])

    def clean(self, hidden: Tensor, latents: Tensor, steps: Tensor) -> Tensor:
        """Velocities of both parts: ``x - level * v``."""
        actions, video = self.options.parts.split(latents)
        registers = self.options.registers
        velocity = self.action_decoder['layer2'](functional.relu(
            self.action_decoder['layer1'](hidden[:, :self.options.actions])))
        levels = self.levels(steps)
        return self.options.parts.join(
            actions - levels[:, :, 0, 0] * velocity.float(),
            video - levels * self.velocity(hidden[:, registers:], steps))

    def decode(self, latent: Tensor, condition: Tensor) -> dict[str, np.ndarray]:
        """``positions`` ``[actions, joints]``, normalised, and the predicted video ``latents``."""
        actions, video = self.options.parts.split(latent.float().cpu()[None])
        return {'positions': actions[0].numpy().copy(), 'latents': video[0].numpy().copy()}

    def _action_tokens(self, actions: Tensor, steps: Tensor) -> Tensor:
        encoder = self.action_encoder
        times = self._action_times[steps].unsqueeze(1).expand(-1, actions.shape[1], -1)
        wide = encoder['W2'](torch.cat([encoder['W1'](actions), times], -1))
        tokens: Tensor = encoder['W3'](functional.silu(wide))
        return tokens

    def _state_token(self, state: Tensor) -> Tensor:
        token: Tensor = self.state_encoder['layer2'](
            functional.relu(self.state_encoder['layer1'](state)))
        return token


def _rope(options: DreamzeroOptions, history_slots: int) -> Rope:
    """Video after a first frame at time 0; actions and states each count on their own."""
    width = options.head_dim // 2
    registers = torch.zeros(options.registers, 3, device='cpu')
    inside, chunk = wan_angles(options, history_slots, before=registers, start=1)
    base = frequencies(options.head_dim, 10_000.0)
    counts = torch.tensor([*range(options.actions), 0], dtype=torch.float64, device='cpu')
    inside[:options.registers, 0] = counts[:, None] * base
    own = chunk.repeat(1, inside.shape[0], 1, 1)
    strides = torch.tensor([options.actions] * options.actions + [1], device='cpu')
    by_position = torch.arange(1 + history_slots, device='cpu')[:, None] * strides
    own[:, :options.registers] = (by_position[..., None] * base).view(
        1 + history_slots, options.registers, 1, width)
    return Rope.from_angles(inside, chunk, rotate_pairs, own=own)


def _description(options: DreamzeroOptions) -> ModelDescription:
    parts = options.parts
    observation = {'state': TensorSpec((options.state_dim,)),
                   'latents': TensorSpec(parts.video), **options.image_condition}
    return ModelDescription(
        name='dreamzero',
        graph=options.graph,
        tokens=options.registers + options.video_tokens,
        dim=options.dim,
        kv_heads=options.heads,
        head_dim=options.head_dim,
        kv_tokens=options.video_tokens,
        latent=parts.spec,
        condition=TensorSpec((sum(spec.elements for spec in observation.values()),)),
        observation=observation,
        outputs={'positions': TensorSpec(parts.actions), 'latents': TensorSpec(parts.video)},
        semantics=OutputSemantics(
            options.latents, FRAMES_PER_LATENT, options.actions / options.latents,
            options.control_period_s),
        dtype=options.dtype,
        prompt=options.prompt,
        late_binding=True,
    )


FAMILY = Family('dreamzero', DreamzeroOptions, SIZES, _description, Dreamzero,
                lambda options: DREAMZERO_KEYS)
read, describe, build = FAMILY.read, FAMILY.describe, FAMILY.build
