"""The network of the `so101` demo model: a small causal diffusion transformer.

A chunk is six tokens: the robot's state, one token per camera, two tokens of four control points
each, and one token for the world latent (what the robot expects to observe at the chunk's end).
A block mixes the six tokens with those of the earlier chunks in the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn import functional

from physis_core.models.kit.preprocess import CameraFormat, prepared

STEPS = 4
BLOCKS = 8
WINDOW_CHUNKS = 4
DIM = 128
HEADS = 4
HEAD_DIM = DIM // HEADS
NOISE_LEVELS = (1.0, 0.75, 0.5, 0.25, 0.0)  # flow-matching time before each step, and at the end

CAMERAS = 2
IMAGE_SIZE = 64
JOINTS = 6
CONTROL_POINTS = 8
LEAD_MAX_S = 0.96
CAMERA = CameraFormat(IMAGE_SIZE, IMAGE_SIZE, mean=(0.4,) * 3, spread=(1 / 3,) * 3)

ACTION_TOKENS = 2
ACTION = CONTROL_POINTS * JOINTS  # numbers in a chunk's actions
WORLD = 16  # numbers in a world latent
LATENT = ACTION + WORLD
TOKENS = 1 + CAMERAS + ACTION_TOKENS + 1
OBSERVED_TOKENS = 1 + CAMERAS
FEATURES = CAMERAS * DIM + JOINTS  # what the world latent summarises

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class CameraEncoder(nn.Module):
    """Image to token: convolutions, then where each channel looks and how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        channels, grid = 48, IMAGE_SIZE // 8
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(32, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1))
        self.sharpness = nn.Parameter(torch.ones(channels, 1))
        self.project = nn.Sequential(nn.Linear(3 * channels, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        axis = torch.linspace(-1.0, 1.0, grid)
        self.register_buffer('across', axis.repeat(grid), persistent=False)
        self.register_buffer('down', axis.repeat_interleave(grid), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images `[B, 64, 64, 3]` with values 0..255 to tokens `[B, DIM]`."""
        maps = self.convolutions(prepared(images, CAMERA)).flatten(2)
        weights = (maps * self.sharpness).softmax(-1)
        x, y = (weights * self.across).sum(-1), (weights * self.down).sum(-1)
        return self.project(torch.cat([x, y, 0.1 * maps.amax(-1)], -1))


class Block(nn.Module):
    """Self-attention and MLP, each modulated by vectors that depend on (step, block) alone."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)
        modulation = torch.zeros(STEPS, 6, DIM)
        modulation[:, 2::3] = 0.2  # the gates
        self.modulation = nn.Parameter(modulation)

    def forward(self, hidden: Tensor, steps: Tensor, attend: Attend) -> Tensor:
        """Hidden states `[B, tokens, DIM]` to the same shape.

        `steps` `[B]` is every row's denoising step. `attend` takes queries, keys and values
        `[B, tokens, HEADS, HEAD_DIM]` and returns what the queries read, `[B, tokens, DIM]`.
        """
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = (
            self.modulation[steps].unsqueeze(2).unbind(1))
        queries, keys, values = self.qkv(_modulated(hidden, shift, scale)).unflatten(
            -1, (3, HEADS, HEAD_DIM)).unbind(2)
        hidden = torch.addcmul(hidden, gate, self.out(attend(queries, keys, values)))
        wide = functional.gelu(
            self.up(_modulated(hidden, shift_mlp, scale_mlp)), approximate='tanh')
        return torch.addcmul(hidden, gate_mlp, self.down(wide))


class Network(nn.Module):
    """Encoders, embeddings, blocks and head.

    `blocks` are the blocks to hold, all by default. Buffers hold the statistics of the
    demonstrations: mean and spread of joint targets [rad], and the whitening projection that
    turns encoder features and joints into a world latent.
    """

    joint_mean_rad: Tensor
    joint_spread_rad: Tensor
    feature_mean: Tensor
    whitening: Tensor

    def __init__(self, blocks: Collection[int] | None = None) -> None:
        super().__init__()
        self.cameras = nn.ModuleList([CameraEncoder() for _ in range(CAMERAS)])
        self.state_in = nn.Sequential(nn.Linear(JOINTS, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.lead_in = nn.Sequential(nn.Linear(16, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        self.action_in = nn.Linear(ACTION // ACTION_TOKENS, DIM)
        self.world_in = nn.Linear(WORLD, DIM)
        self.kind = nn.Parameter(0.02 * torch.randn(TOKENS, DIM))
        held = range(BLOCKS) if blocks is None else sorted(blocks)
        self.blocks = nn.ModuleDict({str(block): Block() for block in held})
        self.norm = nn.LayerNorm(DIM)
        self.action_out = nn.Linear(DIM, ACTION // ACTION_TOKENS)
        self.world_out = nn.Linear(DIM, WORLD)
        for head in (self.action_out, self.world_out):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.register_buffer('joint_mean_rad', torch.zeros(JOINTS))
        self.register_buffer('joint_spread_rad', torch.ones(JOINTS))
        self.register_buffer('feature_mean', torch.zeros(FEATURES))
        self.register_buffer('whitening', torch.zeros(FEATURES, WORLD))

    def normalised(self, joints_rad: Tensor) -> Tensor:
        """Joint angles `[..., JOINTS]` in units of their spread in the demonstrations."""
        return (joints_rad - self.joint_mean_rad) / self.joint_spread_rad

    def in_radians(self, joints: Tensor) -> Tensor:
        """The inverse of `normalised`."""
        return joints * self.joint_spread_rad + self.joint_mean_rad

    def look(self, images: Tensor) -> Tensor:
        """Images `[B, CAMERAS, 64, 64, 3]`, uint8, to camera tokens `[B, CAMERAS, DIM]`."""
        return torch.stack(
            [encoder(images[:, camera]) for camera, encoder in enumerate(self.cameras)], 1)

    def world_latent(self, seen: Tensor, joints: Tensor) -> Tensor:
        """World latents `[..., WORLD]` of camera tokens `[..., CAMERAS, DIM]` and joints."""
        features = torch.cat([seen.flatten(-2), joints], -1)
        return (features - self.feature_mean) @ self.whitening

    def state_token(self, joints: Tensor, lead_s: Tensor) -> Tensor:
        """Normalised joints `[..., JOINTS]` and lead `[...]` in seconds to `[..., DIM]`."""
        octaves = 2.0 ** torch.arange(8, device=lead_s.device)
        phases = (lead_s / LEAD_MAX_S)[..., None] * (math.pi / 8) * octaves
        waves = torch.cat([phases.sin(), phases.cos()], -1)
        return self.state_in(joints) + self.lead_in(waves)

    def embed(self, observed: Tensor, latents: Tensor) -> Tensor:
        """Observed tokens `[B, 3, DIM]` and noisy latents `[B, LATENT]` to `[B, TOKENS, DIM]`."""
        actions, world = latents.split((ACTION, WORLD), -1)
        action_tokens = self.action_in(actions.unflatten(-1, (ACTION_TOKENS, -1)))
        tokens = [observed, action_tokens, self.world_in(world).unsqueeze(-2)]
        return torch.cat(tokens, -2) + self.kind

    def clean(self, hidden: Tensor, base: Tensor) -> Tensor:
        """Hidden states `[B, TOKENS, DIM]` to the clean latents they predict, `[B, LATENT]`.

        The head predicts the change from `base` `[B, LATENT]`: the observed joints at every
        control point, and the world latent of the observation.
        """
        tokens = self.norm(hidden)
        actions = self.action_out(tokens[:, OBSERVED_TOKENS:-1]).flatten(1)
        return torch.cat([actions, self.world_out(tokens[:, -1])], -1) + base


def denoised(latents: Tensor, clean: Tensor, steps: Tensor) -> Tensor:
    """One Euler step of the flow from noise to data: latents `[B, LATENT]` at `steps + 1`."""
    levels = torch.tensor(NOISE_LEVELS, device=steps.device)
    kept = (levels[1:] / levels[:-1])[steps].unsqueeze(-1)
    return clean + (latents - clean) * kept


def rotations(positions: int) -> Tensor:
    """Rotary position factors, complex `[positions, HEAD_DIM / 2]`."""
    frequencies = 100.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotated(vectors: Tensor, factors: Tensor) -> Tensor:
    """Rotate queries or keys `[B, tokens, HEADS, HEAD_DIM]` by `[B, tokens, 1, HEAD_DIM / 2]`."""
    pairs = torch.view_as_complex(vectors.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * factors).flatten(-2).to(vectors.dtype)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention, `[B, tokens, HEADS, HEAD_DIM]` to `[B, tokens, DIM]`.

    `mask` broadcasts to `[B, HEADS, queries, keys]`; False hides a key.
    """
    read = functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), mask)
    return read.transpose(1, 2).flatten(2)


def _modulated(hidden: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return torch.addcmul(shift, functional.layer_norm(hidden, (DIM,)), 1.0 + scale)
