"""The film of an episode: drawn after the run, from the recorded states of the scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import imageio
import numpy as np
from numpy.typing import NDArray

from physis_ros.demo.cameras import Snapshot
from physis_ros.demo.recording import EpisodeSeen
from physis_ros.demo.scene import Scene

_FPS = 25
_GIF_FPS = 12.5
_HEIGHT, _WIDTH = 360, 480
_INSET = 120
_HOLD_LAST_FRAMES = 20


def film(episode: EpisodeSeen, folder: Path,
         progress: Callable[[float], None]) -> Path | None:
    """Write `episode.mp4`, or `episode.gif` where no encoder is; None without states.

    `progress` is told the share that is done, from 0 to 1.
    """
    if not episode.states:
        return None
    target = folder / 'episode.mp4'
    try:
        with imageio.get_writer(target, fps=_FPS, macro_block_size=8) as writer:
            for frame in _frames(episode, 1, progress):
                writer.append_data(frame)
    except (ImportError, OSError, RuntimeError, ValueError):  # no encoder, or one that fails
        target.unlink(missing_ok=True)
        target = folder / 'episode.gif'
        imageio.mimsave(target, list(_frames(episode, 2, progress)), duration=1000 / _GIF_FPS)
    return target


def _frames(episode: EpisodeSeen, stride: int,
            progress: Callable[[float], None]) -> Iterator[NDArray[np.uint8]]:
    """The front camera's view, with the wrist camera's in the corner."""
    states = list(episode.states)[::stride]
    scene = Scene()
    try:
        for done, (_, numbers) in enumerate(states, 1):
            Snapshot.from_list(numbers).restore(scene)
            frame = scene.render('front', _HEIGHT, _WIDTH).copy()
            frame[:_INSET, :_INSET] = scene.render('wrist', _INSET, _INSET)
            progress(done / len(states))
            yield frame
        for _ in range(_HOLD_LAST_FRAMES // stride):
            yield frame
    finally:
        scene.close()
