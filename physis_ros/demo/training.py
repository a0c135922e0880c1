"""Training of the `so101` model: first its eyes, then the world action model on top of them.

The camera encoders learn to say where cube and goal are, and are frozen. The transformer then
learns, by flow matching with noise of one level per stream, to denoise the actions that the
delayed expert took `lead` seconds after an observation, for any lead from 0 to 0.94 s.
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from physis_core.errors import InputError
from physis_core.models.so101 import network
from physis_core.models.so101.network import Network
from physis_core.models.so101.stages import CONTROL_PERIOD_S, network_base
from physis_ros.demo.demonstrations import Demonstrations

_HELD_OUT_EPISODES = 20  # the last ones, never trained on


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    steps: int
    batch: int
    learning_rate: float
    warm_up_steps: int = 100

    def rate(self, step: int) -> float:
        """Learning rate at a step: linear warm-up, then a cosine to 2 % of the peak."""
        cosine = 0.5 * (1.0 + np.cos(np.pi * step / self.steps))
        return self.learning_rate * min(1.0, (step + 1) / self.warm_up_steps) * (
            0.02 + 0.98 * cosine)


ENCODER_SCHEDULE = Schedule(steps=2500, batch=128, learning_rate=2e-3)
WAM_SCHEDULE = Schedule(steps=3000, batch=48, learning_rate=1.5e-3)


def split_episodes(demos: Demonstrations) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training episodes and of the held-out ones."""
    episodes = np.arange(len(demos.chunks))
    if len(episodes) <= _HELD_OUT_EPISODES:
        raise InputError(f'{len(episodes)} demonstrations are too few: {_HELD_OUT_EPISODES} are '
                         'held out; record more with --episodes')
    return episodes[:-_HELD_OUT_EPISODES], episodes[-_HELD_OUT_EPISODES:]


def train_encoder(demos: Demonstrations, model: Network, schedule: Schedule, seed: int) -> float:
    """Train the camera encoders in place; return the held-out median error of positions [mm]."""
    torch.manual_seed(seed)
    actions_rad = torch.from_numpy(demos.actions_rad).flatten(0, 1)
    model.joint_mean_rad.copy_(actions_rad.mean(0))
    model.joint_spread_rad.copy_(actions_rad.std(0))
    probe = nn.Sequential(
        nn.Linear(network.FEATURES, network.DIM), nn.GELU(), nn.Linear(network.DIM, 5))
    images = torch.from_numpy(demos.images)
    joints = model.normalised(torch.from_numpy(demos.joints_rad))
    places_m = torch.from_numpy(demos.cube_goal_m)
    mean_m, spread_m = places_m.mean(0), places_m.std(0).clamp_min(0.01)
    first_held_out = int(demos.starts[split_episodes(demos)[1][0]])

    def locate(pixels: Tensor, rows: Tensor) -> Tensor:
        with torch.autocast('cpu', torch.bfloat16):
            seen = model.look(pixels).flatten(1)
            return probe(torch.cat([seen, joints[rows]], -1)).float()

    parameters = [*model.cameras.parameters(), *probe.parameters()]
    optimiser = torch.optim.AdamW(parameters, schedule.learning_rate, weight_decay=1e-2)
    with tqdm(range(schedule.steps), desc='encoder', unit='step') as progress:
        for step in progress:
            _set_rate(optimiser, schedule.rate(step))
            rows = torch.randint(0, first_held_out, (schedule.batch,))
            error = locate(_recoloured(images[rows]), rows)
            error = error - (places_m[rows] - mean_m) / spread_m
            loss = functional.smooth_l1_loss(error, torch.zeros_like(error), beta=0.2)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 50 == 0:
                progress.set_postfix(loss=f'{loss.item():.4f}')
    with torch.inference_mode():
        errors_m = torch.cat([
            (locate(images[rows], rows) * spread_m + mean_m - places_m[rows]).abs()
            for rows in torch.arange(first_held_out, len(images)).split(256)])
    return 1000.0 * float(errors_m.median())


def train_wam(demos: Demonstrations, model: Network, schedule: Schedule, seed: int,
              checkpoint: Path) -> Network:
    """Train everything but the encoders; return the moving average of the weights.

    The average is also written to `checkpoint` every 500 steps.
    """
    torch.manual_seed(seed)
    model.cameras.requires_grad_(False)
    streams = Streams(demos, model, split_episodes(demos)[0])
    average = copy.deepcopy(model)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(
        parameters, schedule.learning_rate, weight_decay=0.02, betas=(0.9, 0.95))
    losses: list[float] = []
    with tqdm(range(schedule.steps), desc='world action model', unit='step') as progress:
        for step in progress:
            _set_rate(optimiser, schedule.rate(step))
            batch = streams.sample(schedule.batch)
            with torch.autocast('cpu', torch.bfloat16):
                action_error, world_error = denoising_error(model, batch)
            loss = action_error + 0.1 * world_error
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            _average(average, model, min(0.998, (step + 1) / (step + 20)))
            losses.append(action_error.item())
            if step % 20 == 0:
                progress.set_postfix(actions=f'{np.mean(losses[-200:]):.5f}',
                                     world=f'{world_error.item():.4f}')
            if (step + 1) % 500 == 0:
                export(average, checkpoint)
    return average


@dataclass(frozen=True)
class Batch:
    """B streams of N consecutive chunks."""

    observed: Tensor  # [B, N, CAMERAS, DIM] camera tokens
    joints: Tensor  # [B, N, JOINTS] normalised, as observed
    leads_s: Tensor  # [B, N]
    base: Tensor  # [B, N, LATENT] what the latents are changes from
    latents: Tensor  # [B, N, LATENT] the clean ones


class Streams:
    """Cuts streams of consecutive chunks out of demonstrations."""

    def __init__(self, demos: Demonstrations, model: Network, episodes: np.ndarray) -> None:
        self._model = model
        self._starts = torch.from_numpy(demos.starts[episodes])
        self._lengths = torch.from_numpy(demos.chunks[episodes])
        self._leads_s = torch.from_numpy(demos.lead_ticks) * CONTROL_PERIOD_S
        self._joints_rad = torch.from_numpy(demos.joints_rad)
        self._actions = model.normalised(torch.from_numpy(demos.actions_rad)).flatten(1)
        self._seen = features(demos.images, model)
        self._world = model.world_latent(self._seen, model.normalised(self._joints_rad))
        self._world_after = model.world_latent(
            features(demos.images_after, model),
            model.normalised(torch.from_numpy(demos.joints_after_rad)))

    def sample(self, streams: int, chunks: int = 12) -> Batch:
        """Draw streams `[streams, chunks]`, a quarter from the start of their episode."""
        episode = torch.randint(0, len(self._starts), (streams,))
        spare = (self._lengths[episode] - chunks).clamp_min(0)
        offset = (torch.rand(streams) * (spare + 1)).long()
        offset = torch.where(torch.rand(streams) < 0.25, 0, offset)
        rows = (self._starts[episode] + offset)[:, None] + torch.arange(chunks)
        rows = torch.minimum(rows, (self._starts + self._lengths - 1)[episode][:, None])
        batch = self._batch(rows)
        noise_rad = 0.005 * torch.randn_like(batch.joints)
        joints = batch.joints + noise_rad / self._model.joint_spread_rad
        jitter_s = 0.005 * (2.0 * torch.rand(rows.shape) - 1.0)
        return Batch(batch.observed + 0.02 * torch.randn_like(batch.observed), joints,
                     (batch.leads_s + jitter_s).clamp_min(0.0), self._base(joints, rows),
                     batch.latents)

    def whole(self, episode: int) -> Batch:
        """One episode from start to end, without noise, `[1, chunks]`."""
        start, length = int(self._starts[episode]), int(self._lengths[episode])
        return self._batch(torch.arange(start, start + length)[None])

    def _batch(self, rows: Tensor) -> Batch:
        joints = self._model.normalised(self._joints_rad[rows])
        latents = torch.cat([self._actions[rows], self._world_after[rows]], -1)
        return Batch(self._seen[rows], joints, self._leads_s[rows].float(),
                     self._base(joints, rows), latents)

    def _base(self, joints: Tensor, rows: Tensor) -> Tensor:
        observed = torch.cat([joints, self._world[rows]], -1)
        return network_base(observed.flatten(0, 1)).unflatten(0, rows.shape)


def denoising_error(model: Network, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean squared errors of the clean actions and of the clean world latents, normalised units.

    All chunks of a stream have one noise level, as chunks in the pipeline read the history that
    was written at their own step.
    """
    streams, chunks = batch.leads_s.shape
    steps = torch.randint(0, network.STEPS, (streams,))
    level = torch.tensor(network.NOISE_LEVELS)[steps][:, None, None]
    noisy = torch.lerp(batch.latents, torch.randn_like(batch.latents), level)
    state = model.state_token(batch.joints, batch.leads_s)
    observed = torch.cat([state.unsqueeze(2), batch.observed], 2)
    hidden = model.embed(observed.flatten(0, 1), noisy.flatten(0, 1))
    hidden = hidden.view(streams, chunks * network.TOKENS, network.DIM)
    attend = _causal_attention(chunks)
    for block in model.blocks.values():
        hidden = block(hidden, steps, attend)
    clean = model.clean(hidden.view(streams * chunks, network.TOKENS, network.DIM),
                        batch.base.flatten(0, 1))
    error = (clean.float().view_as(batch.latents) - batch.latents).square()
    actions, world = error.split((network.ACTION, network.WORLD), -1)
    return actions.mean(), world.mean()


def features(images: np.ndarray, model: Network) -> Tensor:
    """Camera tokens `[frames, CAMERAS, DIM]` of images `[frames, CAMERAS, 64, 64, 3]`."""
    with torch.inference_mode():
        parts = [model.look(part) for part in
                 tqdm(torch.from_numpy(images).split(256), desc='features', leave=False)]
    return torch.cat(parts).clone()


def set_world_latent(demos: Demonstrations, model: Network) -> None:
    """Fix the world latent: the leading principal components of features and joints, whitened."""
    joints = model.normalised(torch.from_numpy(demos.joints_rad))
    samples = torch.cat([features(demos.images, model).flatten(1), joints], -1)
    model.feature_mean.copy_(samples.mean(0))
    spread = samples.std(0).clamp_min(1e-3)
    scaled = (samples - model.feature_mean) / spread
    variances, axes = torch.linalg.eigh(scaled.T @ scaled / len(scaled))
    leading = slice(-network.WORLD, None)
    model.whitening.copy_(axes[:, leading] / variances[leading].sqrt() / spread[:, None])


def export(model: Network, path: Path) -> None:
    """Write safetensors: weights in half precision, statistics in float32."""
    statistics = dict(model.named_buffers())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() if name in statistics else tensor.half().contiguous()
               for name, tensor in model.state_dict().items()}, path)


def _recoloured(images: Tensor) -> Tensor:
    """Images `[B, 2, 64, 64, 3]` as another light and another camera would show them."""
    batch = len(images)
    light = 1.0 + 0.15 * torch.randn(batch, 1, 1, 1, 1)
    return (images.float() * light + 10.0 * torch.randn(batch, 1, 1, 1, 3)).clamp(0.0, 255.0)


def _causal_attention(chunks: int) -> network.Attend:
    """Attention of whole streams: every chunk reads itself and the window before it.

    Written out, because the CPU's fused attention is slow backwards for so few tokens.
    """
    index = torch.arange(chunks).repeat_interleave(network.TOKENS)
    distance = index[:, None] - index
    hidden = (distance < 0) | (distance > network.WINDOW_CHUNKS)
    turns = network.rotations(chunks)[index][:, None]

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        queries = network.rotated(queries, turns).transpose(1, 2)
        keys = network.rotated(keys, turns).permute(0, 2, 3, 1)
        scores = (queries @ keys) * network.HEAD_DIM**-0.5
        weights = scores.masked_fill(hidden, -1e9).softmax(-1).to(values.dtype)
        return (weights @ values.transpose(1, 2)).transpose(1, 2).flatten(2)

    return attend


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group['lr'] = rate


@torch.no_grad()
def _average(average: Network, model: Network, decay: float) -> None:
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1.0 - decay)
