"""Training of the `so101` model: first its eyes, then the world action model on top of them.

The camera encoders learn to say where cube and goal are, and are frozen. The transformer then
learns, by flow matching with diffusion noise of one level per stream, to denoise the actions that
the expert took `lead` seconds after an observation, for any lead from 0 to 0.96 s.
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
from physis_ros.demo.demonstrations import TICKS_PER_FRAME, Demonstrations

LEAD_MAX_TICKS = round(network.LEAD_MAX_S / CONTROL_PERIOD_S)
_SLIP_TICKS = 5.0  # largest standard deviation, from one chunk of lead upwards
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


ENCODER_SCHEDULE = Schedule(steps=2000, batch=128, learning_rate=2e-3)
WAM_SCHEDULE = Schedule(steps=4000, batch=48, learning_rate=1.5e-3)


def split_episodes(demos: Demonstrations) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training episodes and of the held-out ones."""
    episodes = np.arange(len(demos.ticks))
    if len(episodes) <= _HELD_OUT_EPISODES:
        raise InputError(f'{len(episodes)} demonstrations are too few: {_HELD_OUT_EPISODES} are '
                         'held out; generate more with --episodes')
    return episodes[:-_HELD_OUT_EPISODES], episodes[-_HELD_OUT_EPISODES:]


def train_encoder(demos: Demonstrations, model: Network, schedule: Schedule, seed: int) -> float:
    """Train the camera encoders in place; return the held-out median error of positions [mm]."""
    torch.manual_seed(seed)
    _set_statistics(demos, model)
    probe = nn.Sequential(
        nn.Linear(network.FEATURES, network.DIM), nn.GELU(), nn.Linear(network.DIM, 5))
    frame_ticks = _frame_ticks(demos)
    images = torch.from_numpy(demos.images)
    joints = model.normalised(torch.from_numpy(demos.joints_rad[frame_ticks]))
    places_m = torch.from_numpy(demos.cube_goal_m[frame_ticks])
    mean_m, spread_m = places_m.mean(0), places_m.std(0).clamp_min(0.01)
    held_out = np.repeat(np.arange(len(demos.frames)), demos.frames) >= split_episodes(demos)[1][0]
    seen_frames = torch.from_numpy(np.flatnonzero(~held_out))
    unseen_frames = torch.from_numpy(np.flatnonzero(held_out))

    def locate(pixels: Tensor, frames: Tensor) -> Tensor:
        with torch.autocast('cpu', torch.bfloat16):
            seen = model.look(pixels).flatten(1)
            return probe(torch.cat([seen, joints[frames]], -1)).float()

    parameters = [*model.cameras.parameters(), *probe.parameters()]
    optimiser = torch.optim.AdamW(parameters, schedule.learning_rate, weight_decay=1e-2)
    with tqdm(range(schedule.steps), desc='encoder', unit='step') as progress:
        for step in progress:
            _set_rate(optimiser, schedule.rate(step))
            frames = seen_frames[torch.randint(0, len(seen_frames), (schedule.batch,))]
            error = locate(_recoloured(images[frames]), frames)
            error = error - (places_m[frames] - mean_m) / spread_m
            loss = functional.smooth_l1_loss(error, torch.zeros_like(error), beta=0.2)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 50 == 0:
                progress.set_postfix(loss=f'{loss.item():.4f}')
    with torch.inference_mode():
        errors_m = torch.cat([
            (locate(images[frames], frames) * spread_m + mean_m - places_m[frames]).abs()
            for frames in unseen_frames.split(256)])
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
    believed: Tensor  # [B, N, LATENT] what the noisy ones are made of
    alive: Tensor  # [B, N] False after the demonstration's end


class Streams:
    """Cuts streams of chunks, as the running pipeline would see them, out of demonstrations."""

    def __init__(self, demos: Demonstrations, model: Network, episodes: np.ndarray,
                 chunks: int = 12) -> None:
        self._model = model
        self._chunks = torch.arange(chunks)
        self._episodes = torch.from_numpy(episodes)
        self._ticks = torch.from_numpy(demos.ticks)
        self._frames = torch.from_numpy(demos.frames)
        self._tick_starts = torch.from_numpy(demos.tick_starts)
        self._frame_starts = torch.from_numpy(demos.frame_starts)
        self._joints_rad = torch.from_numpy(demos.joints_rad)
        self._targets = model.normalised(torch.from_numpy(demos.targets_rad))
        self._seen = features(demos, model)
        joints = model.normalised(self._joints_rad[torch.from_numpy(_frame_ticks(demos))])
        self._world = model.world_latent(self._seen, joints)

    def sample(self, batch: int) -> Batch:
        """Draw streams with random leads and places in the demonstration.

        A quarter are true starts: the arm holds still until the first chunk is due, so the
        first observations all show the initial scene.
        """
        episode = self._episodes[torch.randint(0, len(self._episodes), (batch,))]
        lead = torch.randint(0, LEAD_MAX_TICKS + 1, (batch,))
        common = torch.tensor([0, 4, 8, 16, 32])[torch.randint(0, 5, (batch,))]
        lead = torch.where(torch.rand(batch) < 0.3, common, lead)
        last_start = self._ticks[episode] - 6 * network.CONTROL_POINTS
        start = (torch.rand(batch) * last_start).long()
        start = torch.where(torch.rand(batch) < 0.25, 0, start)
        return self.cut(episode, start, lead, jitter=True)

    def cut(self, episode: Tensor, start: Tensor, lead: Tensor, jitter: bool) -> Batch:
        """Streams `[B]` of `episode` whose first control point is tick `start`.

        Every chunk was observed about `lead` ticks before its first control point. `jitter`
        adds what a real pipeline does: dropped frames, joints newer than the images, noise.

        It also lets chunks slip: what the noisy latents hold, and what later observations show
        of it, runs ahead of or behind the demonstration, at random or alternating from chunk to
        chunk, while the clean latents to be learned stay in step. Without that, a model under a
        delay of n chunks learns to continue from the pose that it observes, and its chunks fall
        apart into n + 1 interleaved trajectories that swing around the right one (at one chunk:
        every other chunk). With it, the model learns to bring the trajectories together.
        """
        due = start[:, None] + self._chunks * network.CONTROL_POINTS  # [B, N] ticks
        ticks, lead = self._ticks[episode][:, None], lead[:, None]
        last_frame = self._frames[episode][:, None] - 1
        wanted = due - lead
        frame = torch.minimum((wanted + TICKS_PER_FRAME // 2) // TICKS_PER_FRAME,
                              due // TICKS_PER_FRAME)
        if jitter:
            frame = frame - (torch.rand(frame.shape) < 0.1).long()
        holding = (start[:, None] == 0) & (wanted <= 0)
        over = frame > last_frame
        frame = torch.minimum(torch.where(holding, 0, frame).clamp_min(0), last_frame)
        nominal_tick = frame * TICKS_PER_FRAME
        slip, seen_slip = self._slips(lead, frame.shape[1]) if jitter else (0, 0)
        lead = torch.where(holding | over, lead, due - nominal_tick).clamp(0, LEAD_MAX_TICKS)
        if jitter:
            slipped = frame + (seen_slip + TICKS_PER_FRAME // 2) // TICKS_PER_FRAME
            slipped = torch.where(holding, frame, slipped)
            frame = torch.minimum(slipped.clamp_min(0), last_frame)
        seen_tick = frame * TICKS_PER_FRAME
        joint_tick = seen_tick
        if jitter:
            newer = torch.minimum(seen_tick + torch.randint(0, 3, frame.shape), due)
            joint_tick = torch.where(holding, seen_tick, newer)
        tick_start = self._tick_starts[episode][:, None]
        frame_index = self._frame_starts[episode][:, None] + frame
        joints_rad = self._joints_rad[tick_start + torch.minimum(joint_tick, ticks - 1)]
        seen, leads_s = self._seen[frame_index], lead * CONTROL_PERIOD_S
        if jitter:
            joints_rad = joints_rad + 0.005 * torch.randn_like(joints_rad)
            seen = seen + 0.02 * torch.randn_like(seen)
            leads_s = (leads_s + 0.005 * (2.0 * torch.rand(leads_s.shape) - 1.0)).clamp_min(0.0)
        joints = self._model.normalised(joints_rad)
        world_now = self._world[frame_index]
        world = self._world_at(episode, due + network.CONTROL_POINTS)
        latents = torch.cat([self._actions_at(episode, due), world], -1)
        believed = torch.cat([self._actions_at(episode, due + slip), world], -1)
        base = network_base(torch.cat([joints, world_now], -1).flatten(0, 1))
        return Batch(seen, joints, leads_s, base.unflatten(0, due.shape), latents, believed,
                     due < ticks)

    def _slips(self, lead: Tensor, chunks: int) -> tuple[Tensor, Tensor]:
        """Ticks by which chunks run ahead, `[B, N]`, and by which their observations do.

        `lead` is `[B, 1]`. An observation shows what the last chunk before it has done.
        """
        latest = 1 + lead // network.CONTROL_POINTS  # chunks between a chunk and the one it sees
        history = 1 + LEAD_MAX_TICKS // network.CONTROL_POINTS
        index = torch.arange(history + chunks)
        chunks_ahead = (lead / network.CONTROL_POINTS).clamp(0.0, 1.0)
        spread = _SLIP_TICKS * torch.rand(len(lead), 1) * chunks_ahead
        swing = torch.randn(len(lead), 1) * (1 - 2 * (index % 2))
        slip = (spread * (swing + torch.randn(len(lead), len(index)))).round().long()
        return slip[:, history:], slip.gather(1, history + self._chunks - latest)

    def _actions_at(self, episode: Tensor, tick: Tensor) -> Tensor:
        """Normalised joint targets `[B, N, ACTION]` of the chunks that begin at ticks `[B, N]`."""
        points = tick[..., None] + torch.arange(network.CONTROL_POINTS)
        last = self._ticks[episode][:, None, None] - 1
        points = torch.minimum(points.clamp_min(0), last)
        return self._targets[self._tick_starts[episode][:, None, None] + points].flatten(2)

    def _world_at(self, episode: Tensor, tick: Tensor) -> Tensor:
        """World latents `[B, N, WORLD]` at ticks `[B, N]`, interpolated between frames."""
        last = self._frames[episode][:, None] - 1
        before = torch.minimum(tick // TICKS_PER_FRAME, last)
        after = torch.minimum(before + 1, last)
        share = (tick % TICKS_PER_FRAME / TICKS_PER_FRAME)[..., None]
        first = self._frame_starts[episode][:, None]
        return torch.lerp(self._world[first + before], self._world[first + after], share)


def denoising_error(model: Network, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean squared errors of the clean actions and of the clean world latents, normalised units.

    All chunks of a stream have one noise level, as chunks in the pipeline read the history that
    was written at their own step.
    """
    streams, chunks = batch.leads_s.shape
    steps = torch.randint(0, network.STEPS, (streams,))
    level = torch.tensor(network.NOISE_LEVELS)[steps][:, None, None]
    noisy = torch.lerp(batch.believed, torch.randn_like(batch.believed), level)
    state = model.state_token(batch.joints, batch.leads_s)
    observed = torch.cat([state.unsqueeze(2), batch.observed], 2)
    hidden = model.embed(observed.flatten(0, 1), noisy.flatten(0, 1))
    hidden = hidden.view(streams, chunks * network.TOKENS, network.DIM)
    attend = _causal_attention(chunks)
    for block in model.blocks.values():
        hidden = block(hidden, steps, attend)
    clean = model.clean(hidden.view(streams * chunks, network.TOKENS, network.DIM),
                        batch.base.flatten(0, 1))
    error = (clean.float().view_as(batch.latents) - batch.latents).square()[batch.alive]
    actions, world = error.split((network.ACTION, network.WORLD), -1)
    return actions.mean(), world.mean()


def features(demos: Demonstrations, model: Network) -> Tensor:
    """Camera tokens of every frame, `[sum(frames), CAMERAS, DIM]`."""
    with torch.inference_mode():
        return torch.cat([model.look(images) for images in
                          tqdm(torch.from_numpy(demos.images).split(256), desc='features')]).clone()


def set_world_latent(demos: Demonstrations, model: Network) -> None:
    """Fix the world latent: the leading principal components of features and joints, whitened."""
    joints = model.normalised(torch.from_numpy(demos.joints_rad[_frame_ticks(demos)]))
    samples = torch.cat([features(demos, model).flatten(1), joints], -1)
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


def _set_statistics(demos: Demonstrations, model: Network) -> None:
    targets_rad = torch.from_numpy(demos.targets_rad)
    model.joint_mean_rad.copy_(targets_rad.mean(0))
    model.joint_spread_rad.copy_(targets_rad.std(0))


def _frame_ticks(demos: Demonstrations) -> np.ndarray:
    """Index into the ticks of every frame, `[sum(frames)]`."""
    return np.concatenate([
        start + TICKS_PER_FRAME * np.arange(frames)
        for start, frames in zip(demos.tick_starts, demos.frames, strict=True)])


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
