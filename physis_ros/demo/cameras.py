"""The cameras of the simulated robot: a thread that draws what the scene was like at a moment."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from physis_ros.demo.scene import CAMERAS, Scene

_JOIN_S = 5.0


@dataclass(frozen=True)
class Snapshot:
    """What a camera can see of a scene: `qpos` of the physics, and where the goal is `[3]`."""

    qpos: NDArray[np.float64]
    goal_m: NDArray[np.float64]

    @classmethod
    def of(cls, scene: Scene) -> Snapshot:
        """The scene as it is now."""
        return cls(scene.data.qpos.copy(), scene.goal_m.copy())

    @classmethod
    def from_list(cls, values: list[float]) -> Snapshot:
        """The inverse of `to_list`."""
        return cls(np.array(values[3:]), np.array(values[:3]))

    def to_list(self) -> list[float]:
        """Plain numbers, for a message."""
        return [*self.goal_m.tolist(), *self.qpos.tolist()]

    def restore(self, scene: Scene) -> None:
        """Make `scene` look like this; only for drawing, velocities stay as they were."""
        scene.data.qpos[:] = self.qpos
        scene.data.mocap_pos[0, :2] = self.goal_m[:2]
        mujoco.mj_forward(scene.model, scene.data)


class Cameras:
    """Draws snapshots in a thread of its own, which owns its scene and its renderers.

    One snapshot may wait while another is drawn; a further one is dropped and counted, as a
    camera that cannot keep up drops frames.
    """

    def __init__(self, show: Callable[[str, NDArray[np.uint8], Any], None]) -> None:
        """`show(camera, pixels, stamp)` is called in the drawing thread."""
        self._show = show
        self._orders: queue.Queue[tuple[Snapshot, Any] | None] = queue.Queue(maxsize=1)
        self._ready = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._draw_all, name='cameras', daemon=True)
        self._thread.start()
        self._ready.wait()

    def capture(self, snapshot: Snapshot, stamp: Any) -> None:
        """Order pictures of `snapshot` from every camera; `stamp` comes back with them."""
        try:
            self._orders.put_nowait((snapshot, stamp))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Draw what is ordered, then free the renderers."""
        if self._thread.is_alive():
            self._orders.put(None)
            self._thread.join(_JOIN_S)

    def _draw_all(self) -> None:
        scene = Scene()
        try:
            scene.render_all()  # the first image compiles the shaders
            self._ready.set()
            while (order := self._orders.get()) is not None:
                snapshot, stamp = order
                snapshot.restore(scene)
                for camera in CAMERAS:
                    self._show(camera, scene.render(camera), stamp)
        finally:
            self._ready.set()
            scene.close()
