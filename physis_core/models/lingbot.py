"""LingBot-VA: a world action model on the shape of Wan 2.2 5B ("LingBot-VA", causal video-action
world model).

A chunk is denoised in two phases: the video first, then, with the video clean, the actions that
bring it about.  The first tokens of a chunk are its actions; the video never sees them, so the
actions' tokens are idle while the video is denoised, and the video's repeat themselves while the
actions are.  The clean pass reads what the robot really did and saw since the previous chunk, and
that is what later chunks remember.  Before the first clean pass the model has seen nothing: the
output of an epoch's first chunk is not meant to be executed.
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
from physis_core.models.kit.attention import Prompt
from physis_core.models.kit.backbone import Backbone, cast
from physis_core.models.kit.layers import TwoLayers, folded, layer_norm, modulated, sinusoid
from physis_core.models.kit.patches import from_patches, to_patches
from physis_core.models.kit.rope import Rope, rotate_pairs
from physis_core.models.kit.schedule import shifted_levels
from physis_core.models.loading import KeyMap
from physis_core.models.protocol import History, ModelDescription, TensorSpec
from physis_core.models.wan import (
    FRAMES_PER_LATENT,
    KEYS,
    PATCH,
    TIMES,
    WanBlock,
    WanOptions,
    wan_angles,
)
from physis_core.units import OutputSemantics

SIZES: dict[str, dict[str, Any]] = {
    'lingbot-va': {'heads': 24, 'channels': 48, 'height': 30, 'width': 52, 'action_steps': 2},
}
LINGBOT_KEYS = KeyMap(KEYS.renames, ignored=rf'{KEYS.ignored}|^condition_embedder_action\.text_')


@dataclass(frozen=True, kw_only=True)
class LingbotOptions(WanOptions):
    """Options of the `lingbot` model; ``steps`` counts both phases, ``shift`` is the video's.

    Attributes:
        action_steps: the last steps, which denoise the actions.
        action_shift: of the actions' noise levels.
        actions_per_latent: control points of one latent.
        action_dim: joints of a control point.
        control_period_s: time between control points [s].
    """

    kv_mode: str = KVMode.CLEAN.value
    renoise: bool = False
    action_steps: int = 2
    action_shift: float = 1.0
    actions_per_latent: int = 16
    action_dim: int = 30
    control_period_s: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.action_steps < self.steps:
            raise InputError(f'action_steps is {self.action_steps} of {self.steps} steps; '
                             'both phases need at least one')
        if self.image_tokens:
            raise InputError(f'image_tokens is {self.image_tokens}; model `lingbot` sees frames, '
                             'not an image of its own: leave it at 0')
        if self.kv_mode != KVMode.CLEAN.value or self.renoise:
            raise InputError('model `lingbot` remembers real observations and takes Euler steps: '
                             'leave kv_mode at `clean` and renoise at false')

    @property
    def actions(self) -> int:
        """Tokens of the actions, the first of a chunk."""
        return self.latents * self.actions_per_latent

    @property
    def parts(self) -> ActionLatent:
        """The parts of a latent."""
        return ActionLatent((self.actions, self.action_dim), self.latent)


class Lingbot(Backbone):
    """The whole denoiser."""

    blocks: nn.ModuleDict
    head_modulation: Tensor

    def __init__(self, options: LingbotOptions, held: Collection[int]) -> None:
        super().__init__(_description(options), options.shift)
        dim, dtype = options.dim, self.dtype
        patch = options.channels * PATCH[1] * PATCH[2]
        self.options = options
        self.patch_embedding_mlp = nn.Linear(patch, dim, dtype=dtype)
        self.action_embedder = nn.Linear(options.action_dim, dim, dtype=dtype)
        self.condition_embedder = _time_embedder(options)
        self.condition_embedder['text_embedder'] = TwoLayers(
            options.text_dim, dim, dim, 'gelu').to(dtype)
        self.condition_embedder_action = _time_embedder(options)
        self.blocks = cast(
            nn.ModuleDict({str(block): WanBlock(options) for block in held}), dtype)
        self.proj_out = nn.Linear(dim, patch, dtype=dtype)
        self.action_proj_out = nn.Linear(dim, options.action_dim, dtype=dtype)
        self.scale_shift_table = nn.Parameter(torch.empty(1, 2, dim))

    def settle(self) -> None:
        """Embed the times of both phases, modulate the head, and drop the time embeddings."""
        options = self.options
        self._action_levels, self._video_levels = phase_levels(options)
        groups = [_times(self.condition_embedder_action, self._action_levels, options),
                  _times(self.condition_embedder, self._video_levels, options)]
        embedded = torch.stack([group[0] for group in groups], 1)
        self._times = torch.stack([group[1] for group in groups], 2)
        self.register_buffer('head_modulation', folded(
            self.scale_shift_table[:, :, None] + embedded[:, None]))
        for name in ('time_embedder', 'time_proj'):
            del self.condition_embedder[name]
        del self.condition_embedder_action, self.scale_shift_table
        self._group = torch.tensor([0] * options.actions + [1] * options.video_tokens)
        self.rope = _rope(options, self.description.graph.history_slots)

    def settle_block(self, block: int) -> None:
        """Compute the block's modulation."""
        self._block(block).settle(self._times)

    def encode(self, observation: Mapping[str, np.ndarray], lead_s: float) -> Tensor:
        """What was done and seen since the previous chunk, as a latent."""
        return observed(observation, self.description.observation, 'lingbot').to(self._device)

    def prompt_context(self, *, text: Tensor) -> dict[int, Prompt]:
        """Keys and values of the prompt for each block held."""
        embedded = self.condition_embedder['text_embedder'](text)
        return {block: (self._block(block).attn2.keys_values(embedded),) for block in self.held}

    def embed(self, latents: Tensor, conditions: Tensor, steps: Tensor) -> Tensor:
        """``[B, tokens, dim]``: of the latents, or of what really happened for the clean pass."""
        clean = (steps == self.options.steps).unsqueeze(-1)
        actions, video = self.options.parts.split(
            torch.where(clean, conditions, latents).to(self.dtype))
        return torch.cat([self.action_embedder(actions),
                          self.patch_embedding_mlp(to_patches(video, PATCH))], 1)

    def block(self, block: int, hidden: Tensor, steps: Tensor, history: History,
              contexts: Sequence[Any]) -> Tensor:
        """One transformer block, ``[B, tokens, dim]`` to the same shape."""
        weights = self._block(block)
        return weights.forward(
            hidden, weights.modulation[steps][:, :, self._group],
            lambda attention, inner: attention.with_history(
                inner, history, self.rope, private=self.options.actions),
            [context[block] for context in contexts])

    def step_update(self, hidden: Tensor, latents: Tensor, conditions: Tensor,
                    noises: Tensor | None, steps: Tensor) -> Tensor:
        """An Euler step of the phase's part; the other part stays."""
        parts = [latent + _change(levels, steps, latent) * velocity
                 for latent, levels, velocity in zip(
                     self.options.parts.split(latents),
                     (self._action_levels, self._video_levels),
                     self.velocities(hidden, steps), strict=True)]
        return self.options.parts.join(*parts)

    def clean(self, hidden: Tensor, latents: Tensor, steps: Tensor) -> Tensor:
        """The clean latents that the heads predict; each part from its own noise level."""
        parts = [latent - _at(levels, steps, latent) * velocity
                 for latent, levels, velocity in zip(
                     self.options.parts.split(latents),
                     (self._action_levels, self._video_levels),
                     self.velocities(hidden, steps), strict=True)]
        return self.options.parts.join(*parts)

    def velocities(self, hidden: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Heads: velocities of actions ``[B, points, joints]`` and of video, float32."""
        shift, scale = self.head_modulation[steps][:, :, self._group].unbind(1)
        inner = modulated(layer_norm(hidden, self.options.eps), shift, scale, hidden.dtype)
        actions, video = inner.split((self.options.actions, self.options.video_tokens), 1)
        return (self.action_proj_out(actions).float(),
                from_patches(self.proj_out(video).float(), PATCH, self.options.latent,
                             channels_last=True))

    def decode(self, latent: Tensor, condition: Tensor) -> dict[str, np.ndarray]:
        """``positions`` ``[points, joints]``, normalised, and the predicted video ``latents``."""
        actions, video = self.options.parts.split(latent.float().cpu()[None])
        return {'positions': actions[0].numpy().copy(), 'latents': video[0].numpy().copy()}

    def _block(self, block: int) -> WanBlock:
        weights = self.blocks[str(block)]
        assert isinstance(weights, WanBlock)
        return weights


def phase_levels(options: LingbotOptions) -> tuple[Tensor, Tensor]:
    """Noise levels of actions and video at each pass, and after the last, ``[passes + 1]``."""
    video_steps = options.steps - options.action_steps
    video = shifted_levels(video_steps, options.shift)
    actions = shifted_levels(options.action_steps, options.action_shift)
    return (torch.tensor([1.0] * video_steps + actions + [0.0, 0.0]),
            torch.tensor(video + [0.0] * (options.action_steps + 2)))


def _time_embedder(options: LingbotOptions) -> nn.ModuleDict:
    dim = options.dim
    return nn.ModuleDict({'time_embedder': TwoLayers(options.freq_dim, dim, dim, 'silu'),
                          'time_proj': nn.Linear(dim, 6 * dim)})


def _times(embedder: nn.ModuleDict, levels: Tensor, options: LingbotOptions
           ) -> tuple[Tensor, Tensor]:
    """Embedded times ``[passes, dim]`` and their projection ``[passes, 6, dim]``."""
    embedded: Tensor = embedder['time_embedder'](sinusoid(TIMES * levels[:-1], options.freq_dim))
    return embedded, embedder['time_proj'](functional.silu(embedded)).unflatten(-1, (6, -1))


def _at(levels: Tensor, steps: Tensor, like: Tensor) -> Tensor:
    return levels[steps].view(-1, *[1] * (like.ndim - 1))


def _change(levels: Tensor, steps: Tensor, like: Tensor) -> Tensor:
    return _at(levels, steps + 1, like) - _at(levels, steps, like)


def _rope(options: LingbotOptions, history_slots: int) -> Rope:
    """Actions stand between their latent and the next, beside the picture at (-1, -1)."""
    spread = options.actions_per_latent
    times = [latent + (action + 1) / (spread + 1)
             for latent in range(options.latents) for action in range(spread)]
    beside = torch.tensor([[time, -1.0, -1.0] for time in times], device='cpu')
    inside, chunk = wan_angles(options, history_slots, before=beside)
    return Rope.from_angles(inside, chunk, rotate_pairs)


def _description(options: LingbotOptions) -> ModelDescription:
    parts = options.parts
    return ModelDescription(
        name='lingbot',
        graph=options.graph,
        tokens=options.actions + options.video_tokens,
        dim=options.dim,
        kv_heads=options.heads,
        head_dim=options.head_dim,
        latent=parts.spec,
        condition=parts.spec,
        observation={'actions': TensorSpec(parts.actions), 'latents': TensorSpec(parts.video)},
        outputs={'positions': TensorSpec(parts.actions), 'latents': TensorSpec(parts.video)},
        semantics=OutputSemantics(
            options.latents, FRAMES_PER_LATENT, options.actions_per_latent,
            options.control_period_s),
        dtype=options.dtype,
        prompt=options.prompt,
        late_binding=True,
    )


FAMILY = Family('lingbot', LingbotOptions, SIZES, _description, Lingbot,
                lambda options: LINGBOT_KEYS)
read, describe, build = FAMILY.read, FAMILY.describe, FAMILY.build
