"""Demonstrations of a delayed expert: generated from seeds, stored as one file per shard.

The expert lives under the delay that the model will live under. At every observation it looks
ahead: it lets a copy of the scene play what is already committed, and plans from there. So a
demonstrated chunk knows nothing that could not be known when its observation was taken, and
shows how to correct an error as late as the delay allows. (A model that was trained on an expert
without delay learned to leave its errors to actions that, under delay, had never seen them.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from tqdm import tqdm

from physis_core.errors import InputError
from physis_ros.demo.expert import TICKS_TO_TAKE_OVER, ScriptedExpert
from physis_ros.demo.scene import Scene

TICKS_PER_CHUNK = 8
TICKS_MAX = 600
TICKS_AFTER_SUCCESS = 40
GIVE_UP_CHUNKS = 4  # after the expert's last phase, without success
DELAY_MAX_TICKS = 45
IMAGE_AGE_MAX_TICKS = 2
_COMMON_DELAYS_TICKS = (0, 4, 8, 16, 32)
_COMMON_SHARE = 0.3
_AGED_SHARE = 0.5
_RANDOM_POSE_SHARE = 0.35
_RANDOM_POSE_SPREAD_RAD = 0.5
_UNDISTURBED_SHARE = 0.3
_DISTURBANCE_RAD = (0.003, 0.03)  # of the undelayed expert; divided by 1 + delay / 8 ticks
_DISTURBANCE_MEMORY = 0.9  # per tick


@dataclass(frozen=True)
class Demonstrations:
    """Episodes laid end to end, one row per chunk; a tick is 20 ms.

    A chunk is planned from `images` and `joints_rad`; its control points are due
    `lead_ticks`, `lead_ticks + 1`, ... after the images were taken.
    """

    images: np.ndarray  # [chunks, 2, 64, 64, 3] uint8
    joints_rad: np.ndarray  # [chunks, 6], up to 2 ticks newer than the images
    lead_ticks: np.ndarray  # [chunks]
    actions_rad: np.ndarray  # [chunks, 8, 6] joint targets
    images_after: np.ndarray  # [chunks, 2, 64, 64, 3] at the end of the chunk
    joints_after_rad: np.ndarray  # [chunks, 6] likewise
    cube_goal_m: np.ndarray  # [chunks, 5] cube x, y, z and goal x, y when the images were taken
    chunks: np.ndarray  # [episodes] chunks of every episode

    @classmethod
    def concatenate(cls, parts: list[Demonstrations]) -> Demonstrations:
        """Lay demonstrations end to end."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts])
                     for field in fields(cls)))

    @classmethod
    def load(cls, folder: Path) -> Demonstrations:
        """Read every shard of `folder`, in the order of their names."""
        paths = sorted(folder.glob('demos-*.npz'))
        if not paths:
            raise InputError(f'{folder} holds no demos-*.npz; run the stage `demos` with the same '
                             '--out first')
        return cls.concatenate([cls(**np.load(path)) for path in paths])

    def save(self, path: Path) -> None:
        """Write one shard."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **vars(self))

    @property
    def starts(self) -> np.ndarray:
        """Row of every episode's first chunk, `[episodes]`."""
        return np.cumsum(self.chunks) - self.chunks


class Demonstrator:
    """Records episodes of the delayed expert, one at a time."""

    def __init__(self) -> None:
        self._scene = Scene()
        self._expert = ScriptedExpert(self._scene)
        self._imagined = Scene()
        self._planner = ScriptedExpert(self._imagined)

    def record(self, seed: int) -> Demonstrations | None:
        """Record one episode, or return None when the expert fails (it is disturbed on purpose).

        The disturbance is added to what the arm executes, never to the recorded actions, so the
        demonstrations show how to recover.
        """
        rng = np.random.default_rng((seed, 1))
        spread_rad = _RANDOM_POSE_SPREAD_RAD if rng.random() < _RANDOM_POSE_SHARE else 0.0
        self._scene.reset(seed, spread_rad)
        self._expert.reset()
        delay_ticks = _draw_delay_ticks(rng)
        age_max_ticks = IMAGE_AGE_MAX_TICKS if rng.random() < _AGED_SHARE else 0
        disturbance = Disturbance(rng, delay_ticks)
        hold = self._scene.commanded_rad().astype(np.float64)
        committed = deque([hold] * delay_ticks)
        rows = Rows()
        images, cube_goal, age_ticks = self._scene.render_all(), self._cube_goal_m(), 0
        end_tick, finished_chunks = TICKS_MAX, 0
        tick = 0
        while tick < end_tick:
            actions = self._plan(committed, waits=max(0, delay_ticks - tick))
            rows.observe(images, self._scene.joint_positions_rad(), delay_ticks + age_ticks,
                         np.array(actions), cube_goal, tick + delay_ticks + TICKS_PER_CHUNK)
            committed.extend(actions)
            age_ticks = int(rng.integers(0, age_max_ticks + 1))
            for ticks_left in range(TICKS_PER_CHUNK, 0, -1):
                if tick >= delay_ticks:
                    _follow(self._expert, delay_ticks)
                self._scene.step(committed.popleft() + disturbance.next())
                tick += 1
                if ticks_left - 1 == age_ticks:
                    images, cube_goal = self._scene.render_all(), self._cube_goal_m()
                if tick in rows.ends:
                    rows.end(tick, self._scene)
                if end_tick == TICKS_MAX and self._scene.success():
                    end_tick = tick + TICKS_AFTER_SUCCESS
            finished_chunks += self._expert.done and end_tick == TICKS_MAX
            if finished_chunks > GIVE_UP_CHUNKS:
                return None
        return rows.demonstrations() if end_tick < TICKS_MAX else None

    def close(self) -> None:
        """Free the renderers."""
        self._scene.close()
        self._imagined.close()

    def _plan(self, committed: deque[np.ndarray], waits: int) -> list[np.ndarray]:
        """Return the expert's next chunk after `committed`, of which `waits` ticks only hold."""
        self._imagined.copy_state_of(self._scene)
        self._planner.copy_state_of(self._expert)
        for ahead, target in enumerate(committed):
            if ahead >= waits:
                _follow(self._planner, len(committed) - ahead)
            self._imagined.step(target)
        actions = []
        for _ in range(TICKS_PER_CHUNK):
            actions.append(self._planner.act())
            self._imagined.step(actions[-1])
        return actions

    def _cube_goal_m(self) -> np.ndarray:
        return np.array([*self._scene.cube_m(), *self._scene.goal_m[:2]])


class Rows:
    """Collects an episode's chunks; a chunk is complete once its end was seen."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}  # tick at which a chunk ends: its index
        self._observed: list[tuple[np.ndarray, ...]] = []
        self._after: list[tuple[np.ndarray, np.ndarray]] = []

    def observe(self, images: np.ndarray, joints_rad: np.ndarray, lead_ticks: int,
                actions_rad: np.ndarray, cube_goal_m: np.ndarray, end_tick: int) -> None:
        """Add a chunk that ends at `end_tick`."""
        self.ends[end_tick] = len(self._observed)
        self._observed.append((images, joints_rad, np.array(lead_ticks), actions_rad, cube_goal_m))

    def end(self, tick: int, scene: Scene) -> None:
        """Add what is seen where the chunk that ends at `tick` ends."""
        self._after.append((scene.render_all(), scene.joint_positions_rad()))

    def demonstrations(self) -> Demonstrations:
        """Return the complete chunks as one episode."""
        complete = len(self._after)
        images, joints, leads, actions, cube_goal = map(
            np.stack, zip(*self._observed[:complete], strict=True))
        images_after, joints_after = map(np.stack, zip(*self._after, strict=True))
        return Demonstrations(
            images, joints.astype(np.float32), leads, actions.astype(np.float32), images_after,
            joints_after.astype(np.float32), cube_goal.astype(np.float32), np.array([complete]))


class Disturbance:
    """Smooth random error of the executed targets; the jaw is never disturbed.

    The later the expert corrects, the less it is disturbed: it would never get to the grasp.
    """

    def __init__(self, rng: np.random.Generator, delay_ticks: int) -> None:
        self._rng = rng
        undisturbed = rng.random() < _UNDISTURBED_SHARE
        spread_rad = 0.0 if undisturbed else rng.uniform(*_DISTURBANCE_RAD)
        self._spread_rad = spread_rad / (1.0 + delay_ticks / TICKS_PER_CHUNK)
        self._error_rad = np.zeros(6)

    def next(self) -> np.ndarray:
        """Return the error `[6]` of the next tick."""
        fresh_rad = self._spread_rad * self._rng.standard_normal(6)
        self._error_rad = (_DISTURBANCE_MEMORY * self._error_rad
                           + np.sqrt(1.0 - _DISTURBANCE_MEMORY**2) * fresh_rad)
        self._error_rad[-1] = 0.0
        return self._error_rad


def generate(episodes: int, seed: int, label: str) -> Demonstrations:
    """Record `episodes` successful demonstrations from the seeds `seed`, `seed + 1`, ..."""
    demonstrator = Demonstrator()
    kept: list[Demonstrations] = []
    with tqdm(total=episodes, desc=label, unit='episode') as progress:
        while len(kept) < episodes:
            episode = demonstrator.record(seed)
            seed += 1
            if episode is not None:
                kept.append(episode)
                progress.update()
    demonstrator.close()
    return Demonstrations.concatenate(kept)


def _follow(expert: ScriptedExpert, ticks_left: int) -> None:
    """Let an expert see one tick of what others command, `ticks_left` before it is obeyed."""
    if ticks_left > TICKS_TO_TAKE_OVER:
        expert.watch()
    else:
        expert.act()


def _draw_delay_ticks(rng: np.random.Generator) -> int:
    if rng.random() < _COMMON_SHARE:
        return int(rng.choice(_COMMON_DELAYS_TICKS))
    return int(rng.integers(0, DELAY_MAX_TICKS + 1))
