"""Demonstrations of the scripted expert: generated from seeds, stored as one file per shard."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from physis_core.errors import InputError
from physis_ros.demo.expert import ScriptedExpert
from physis_ros.demo.scene import Scene

TICKS_PER_FRAME = 4  # one rendered pair of images every 80 ms
TICKS_MAX = 520
TICKS_AFTER_SUCCESS = 40
_RANDOM_POSE_SHARE = 0.35
_RANDOM_POSE_SPREAD_RAD = 0.5
_UNDISTURBED_SHARE = 0.3
_DISTURBANCE_RAD = (0.005, 0.035)
_DISTURBANCE_MEMORY = 0.9  # per tick


@dataclass(frozen=True)
class Episode:
    """One demonstration of `ticks` control periods (20 ms), an image pair every fourth."""

    joints_rad: np.ndarray  # [ticks, 6] measured at the start of the tick
    targets_rad: np.ndarray  # [ticks, 6] what the expert commands for the tick
    cube_goal_m: np.ndarray  # [ticks, 5] cube x, y, z and goal x, y: labels for the encoder
    images: np.ndarray  # [ceil(ticks / 4), 2, 64, 64, 3] uint8


@dataclass(frozen=True)
class Demonstrations:
    """Episodes laid end to end; `ticks` and `frames` say how long each one is."""

    joints_rad: np.ndarray  # [sum(ticks), 6]
    targets_rad: np.ndarray  # [sum(ticks), 6]
    cube_goal_m: np.ndarray  # [sum(ticks), 5]
    images: np.ndarray  # [sum(frames), 2, 64, 64, 3]
    ticks: np.ndarray  # [episodes]
    frames: np.ndarray  # [episodes]

    @classmethod
    def of(cls, episodes: list[Episode]) -> 'Demonstrations':
        """Lay episodes end to end."""
        return cls(
            joints_rad=np.concatenate([episode.joints_rad for episode in episodes]),
            targets_rad=np.concatenate([episode.targets_rad for episode in episodes]),
            cube_goal_m=np.concatenate([episode.cube_goal_m for episode in episodes]),
            images=np.concatenate([episode.images for episode in episodes]),
            ticks=np.array([len(episode.joints_rad) for episode in episodes]),
            frames=np.array([len(episode.images) for episode in episodes]))

    @classmethod
    def load(cls, folder: Path) -> 'Demonstrations':
        """Read every shard of `folder`, in the order of their names."""
        paths = sorted(folder.glob('demos-*.npz'))
        if not paths:
            raise InputError(
                f'{folder} holds no demos-*.npz; run the `demos` stage with the same --out first')
        shards = [np.load(path) for path in paths]
        return cls(**{name: np.concatenate([shard[name] for shard in shards])
                      for name in cls.__dataclass_fields__})

    def save(self, path: Path) -> None:
        """Write one shard."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{name: getattr(self, name) for name in self.__dataclass_fields__})

    @property
    def tick_starts(self) -> np.ndarray:
        """Index of every episode's first tick, `[episodes]`."""
        return np.cumsum(self.ticks) - self.ticks

    @property
    def frame_starts(self) -> np.ndarray:
        """Index of every episode's first frame, `[episodes]`."""
        return np.cumsum(self.frames) - self.frames


def demonstrate(scene: Scene, expert: ScriptedExpert, seed: int) -> Episode | None:
    """Record one episode, or return None when the expert fails (it is disturbed on purpose).

    The disturbance is added to what the arm executes, never to the recorded target, so the
    demonstrations show how to recover.
    """
    rng = np.random.default_rng((seed, 1))
    random_pose = rng.random() < _RANDOM_POSE_SHARE
    scene.reset(seed, _RANDOM_POSE_SPREAD_RAD if random_pose else 0.0)
    expert.reset()
    spread_rad = 0.0 if rng.random() < _UNDISTURBED_SHARE else rng.uniform(*_DISTURBANCE_RAD)
    disturbance_rad = np.zeros(6)
    joints, targets, cube_goal, images = [], [], [], []
    ticks_left = None
    for tick in range(TICKS_MAX):
        joints.append(scene.joint_positions_rad())
        cube_goal.append([*scene.cube_m(), *scene.goal_m[:2]])
        if tick % TICKS_PER_FRAME == 0:
            images.append(scene.render_all())
        target = expert.act()
        targets.append(target)
        fresh_rad = rng.standard_normal(6) * np.sqrt(1 - _DISTURBANCE_MEMORY**2)
        disturbance_rad = _DISTURBANCE_MEMORY * disturbance_rad + spread_rad * fresh_rad
        disturbance_rad[-1] = 0.0  # the jaw is never disturbed
        scene.step(target + disturbance_rad)
        if ticks_left is None and scene.success():
            ticks_left = TICKS_AFTER_SUCCESS
        elif ticks_left is not None:
            ticks_left -= 1
            if ticks_left == 0:
                break
    if ticks_left is None:
        return None
    return Episode(
        np.array(joints, np.float32), np.array(targets, np.float32),
        np.array(cube_goal, np.float32), np.array(images))


def generate(episodes: int, seed: int, label: str) -> Demonstrations:
    """Record `episodes` successful demonstrations from the seeds `seed`, `seed + 1`, ..."""
    scene = Scene()
    expert = ScriptedExpert(scene)
    kept: list[Episode] = []
    with tqdm(total=episodes, desc=label, unit='episode') as progress:
        while len(kept) < episodes:
            episode = demonstrate(scene, expert, seed)
            seed += 1
            if episode is not None:
                kept.append(episode)
                progress.update()
    scene.close()
    return Demonstrations.of(kept)
