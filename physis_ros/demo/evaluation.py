"""Closed-loop evaluation in lockstep: many simulated arms, one batch, no real time.

What the pipeline does in real time is done here exactly: an observation every chunk, a chunk that
takes effect a fixed delay later, control points joined by straight lines at the servo's rate.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from physis_core.models.protocol import chunk_noise
from physis_core.models.so101 import network
from physis_core.models.so101.stages import CONTROL_PERIOD_S, So101Model
from physis_ros.demo.demonstrations import Demonstrations
from physis_ros.demo.scene import Scene
from physis_ros.demo.training import Streams, split_episodes

SERVO_PERIOD_S = 0.004
EPISODE_LIMIT_S = 12.0
FIRST_SEED = 900_000
CHUNK_S = network.CONTROL_POINTS * CONTROL_PERIOD_S
_SERVO_TICKS_PER_CHUNK = round(CHUNK_S / SERVO_PERIOD_S)


@dataclass(frozen=True)
class Trial:
    """Conditions of one evaluation.

    Attributes:
        delay_s: time from the start of a chunk's computation to its first control point.
        image_age_max_s: images are up to this much older than the joints (uniformly random).
        blank_cameras: the model is shown black images.
    """

    delay_s: float
    image_age_max_s: float = 0.0
    blank_cameras: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of the episodes of one trial."""

    trial: Trial
    success: np.ndarray  # [episodes] bool
    duration_s: np.ndarray  # [episodes] simulated time until success, or the limit

    @property
    def success_rate(self) -> float:
        """Share of episodes that succeeded."""
        return float(self.success.mean())

    def __str__(self) -> str:
        median_s = np.median(self.duration_s[self.success]) if self.success.any() else np.nan
        return (f'delay {1000 * self.trial.delay_s:4.0f} ms  '
                f'image age <= {1000 * self.trial.image_age_max_s:2.0f} ms  '
                f'{"black images  " if self.trial.blank_cameras else ""}'
                f'success {self.success.sum()}/{len(self.success)} = {self.success_rate:.2f}  '
                f'median {median_s:.1f} s')


class LockstepHistory:
    """KV of one stage for rows that are all at the same chunk; see `protocol.History`."""

    def __init__(self, model: So101Model) -> None:
        self._graph = model.description.graph
        self._slots: list[tuple[Tensor, Tensor]] = []
        self._chunk = 0
        self.positions = torch.zeros(1, 1, dtype=torch.int64)

    def begin(self, chunk: int) -> None:
        """Turn to the next chunk."""
        self._chunk = chunk
        self.positions = torch.tensor([self._graph.positions(chunk)])

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return own and earlier KV, and keep the own."""
        own = (keys, values)
        all_keys, all_values = (torch.cat(part, 1) for part in zip(own, *self._slots, strict=True))
        slot = self._graph.history_slot(self._chunk)
        self._slots[slot:slot + 1] = [own]
        return all_keys, all_values, None


class LockstepModel:
    """The sequential order of stages, for a batch of streams that all start together."""

    def __init__(self, model: So101Model, seeds: list[int]) -> None:
        self.model = model
        self._seeds = seeds
        graph = model.description.graph
        self._histories = [LockstepHistory(model) for _ in range(graph.stages)]
        self._chunk = 0

    def next_latents(self, conditions: Tensor) -> Tensor:
        """Denoise one chunk of every stream: `[B, *condition]` to `[B, *latent]`."""
        description = self.model.description
        graph = description.graph
        latents = torch.stack([chunk_noise(description.latent, seed, 0, self._chunk, 0)
                               for seed in self._seeds])
        for step in range(graph.steps):
            steps = torch.full((len(latents),), step)
            hidden = self.model.embed(latents, conditions, steps)
            for block in range(graph.blocks):
                history = self._histories[graph.stage(step, block)]
                history.begin(self._chunk)
                hidden = self.model.block(block, hidden, steps, history, ())
            latents = self.model.step_update(hidden, latents, conditions, None, steps)
        self._chunk += 1
        return latents


class Episode:
    """One arm under evaluation: its scene, the control points it was sent, how it ended."""

    def __init__(self, scene: Scene, seed: int, trial: Trial) -> None:
        self.scene = scene
        self.duration_s = EPISODE_LIMIT_S
        self.success = False
        self._trial = trial
        self._rng = np.random.default_rng((seed, 2))
        scene.reset(seed)
        self._home_rad = scene.commanded_rad()
        self._points_rad: list[np.ndarray] = []
        self._servo_tick = 0
        self._images = scene.render_all()
        self._age_ticks = 0

    def observe(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return images `[2, 64, 64, 3]`, joints `[6]` in rad and the coming chunk's lead in s."""
        images = np.zeros_like(self._images) if self._trial.blank_cameras else self._images
        lead_s = self._trial.delay_s + self._age_ticks * SERVO_PERIOD_S
        return images, self.scene.joint_positions_rad(), lead_s

    def play(self, points_rad: np.ndarray) -> None:
        """Append a chunk `[8, 6]` to what is due, and run until the next observation."""
        self._points_rad.extend(points_rad)
        age_max_ticks = int(self._trial.image_age_max_s / SERVO_PERIOD_S)
        self._age_ticks = int(self._rng.integers(0, age_max_ticks + 1))
        for tick in range(_SERVO_TICKS_PER_CHUNK):
            if tick == _SERVO_TICKS_PER_CHUNK - self._age_ticks:
                self._images = self.scene.render_all()
            self.scene.command(self._command_rad())
            self.scene.advance(SERVO_PERIOD_S)
            self._servo_tick += 1
            if self.scene.success():
                self.success, self.duration_s = True, self.scene.time_s
                return
        if self._age_ticks == 0:
            self._images = self.scene.render_all()

    def _command_rad(self) -> np.ndarray:
        """Return the servo's command now: straight lines between control points, else hold."""
        since_s = self._servo_tick * SERVO_PERIOD_S - self._trial.delay_s
        place = since_s / CONTROL_PERIOD_S
        if place < 0.0:
            return self._home_rad
        index = min(int(place + 1e-9), len(self._points_rad) - 1)
        following = min(index + 1, len(self._points_rad) - 1)
        share = min(place - index, 1.0)
        return (1.0 - share) * self._points_rad[index] + share * self._points_rad[following]


def evaluate(model: So101Model, scenes: list[Scene], trial: Trial, first_seed: int = FIRST_SEED
             ) -> Outcome:
    """Run one episode in every scene, with the seeds `first_seed`, `first_seed + 1`, ..."""
    seeds = [first_seed + index for index in range(len(scenes))]
    episodes = [Episode(scene, seed, trial) for scene, seed in zip(scenes, seeds, strict=True)]
    pipeline = LockstepModel(model, seeds)
    chunks = int(EPISODE_LIMIT_S / CHUNK_S)
    label = f'delay {1000 * trial.delay_s:.0f} ms'
    for _ in tqdm(range(chunks), desc=label, unit='chunk', leave=False):
        images, joints_rad, leads_s = map(
            np.stack, zip(*(episode.observe() for episode in episodes), strict=True))
        conditions = model.encode_batch(images, joints_rad, leads_s)
        latents = pipeline.next_latents(conditions)
        for episode, latent, condition in zip(episodes, latents, conditions, strict=True):
            if not episode.success:
                episode.play(model.decode(latent, condition)['positions'])
        if all(episode.success for episode in episodes):
            break
    return Outcome(trial, np.array([episode.success for episode in episodes]),
                   np.array([episode.duration_s for episode in episodes]))


@dataclass(frozen=True)
class WorldError:
    """Mean squared error of the world latent at a chunk's end, on held-out demonstrations."""

    delay_s: float
    model: float
    copy_last: float  # the error of the latent of the observation the model was given


def world_errors(model: So101Model, demos: Demonstrations, delays_s: list[float]
                 ) -> list[WorldError]:
    """Compare the predicted world latent with copy-last, in streams from the episodes' starts."""
    held_out = torch.from_numpy(split_episodes(demos)[1])
    streams = Streams(demos, model.network, held_out.numpy(), chunks=24)
    errors = []
    for delay_s in delays_s:
        lead = torch.full_like(held_out, round(delay_s / CONTROL_PERIOD_S))
        batch = streams.cut(held_out, torch.zeros_like(held_out), lead, jitter=False)
        pipeline = LockstepModel(model, held_out.tolist())
        predicted = []
        with torch.inference_mode():
            state = model.network.state_token(batch.joints, batch.leads_s)
            observed = torch.cat([state.unsqueeze(2), batch.observed], 2).flatten(2)
            world_now = batch.base[..., network.ACTION:]
            conditions = torch.cat([observed, batch.joints, world_now], -1)
            for chunk in range(conditions.shape[1]):
                latents = pipeline.next_latents(conditions[:, chunk])
                predicted.append(latents[:, network.ACTION:])
        truth = batch.latents[..., network.ACTION:][batch.alive]
        errors.append(WorldError(
            delay_s,
            float((torch.stack(predicted, 1)[batch.alive] - truth).square().mean()),
            float((world_now[batch.alive] - truth).square().mean())))
    return errors
