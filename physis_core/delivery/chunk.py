"""A chunk of control points with the times that make it playable and accountable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physis_core.delivery.age import Age
from physis_core.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlannedChunk:
    """Control points of one chunk; point ``i`` is due at ``due_ns + i * period_ns``.

    All times are of the steady clock (``time.monotonic_ns``).

    Attributes:
        epoch: counts the resets of the stream.
        chunk: counts the chunks of the epoch.
        due_ns: when control point 0 is due.
        period_ns: time between two control points.
        valid_until_ns: nothing of the chunk is played at or after this.
        capture_ns: capture of the oldest input.
        received_ns: when that observation reached the engine.
        started_ns: when the first stage took it.
        finished_ns: when the chunk left the pipeline.
        positions: ``[points, joints]`` in rad (m for prismatic joints).
        velocities: ``[points, joints]`` in rad/s (m/s).
    """

    epoch: int
    chunk: int
    due_ns: int
    period_ns: int
    valid_until_ns: int
    capture_ns: int
    received_ns: int
    started_ns: int
    finished_ns: int
    positions: Floats
    velocities: Floats

    @property
    def points(self) -> int:
        """Number of control points."""
        return len(self.positions)

    @property
    def on_time(self) -> bool:
        """Whether the chunk was finished when its first control point was due."""
        return self.finished_ns <= self.due_ns

    def time_ns(self, point: int) -> int:
        """When a control point is due."""
        return self.due_ns + point * self.period_ns

    def age_at(self, effect_ns: int) -> Age:
        """The age of the chunk if it takes effect at ``effect_ns``."""
        return Age(
            self.received_ns - self.capture_ns, self.started_ns - self.received_ns,
            self.finished_ns - self.started_ns, effect_ns - self.finished_ns)


def finite_positions(name: str, positions: object, joints: int) -> Floats:
    """``positions`` as float64 ``[points, joints]``.

    Raises:
        InputError: not two axes, no points, another number of joints, or a value that is not
            finite; the text names the point and the joint.
    """
    array = np.asarray(positions, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != joints or not len(array):
        raise InputError(f'{name}: positions have shape {array.shape}, the robot has {joints} '
                         f'joints; they must be [points, {joints}] with at least one point')
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        point, joint = (int(index) for index in bad[0])
        raise InputError(f'{name}: control point {point} of joint {joint} is '
                         f'{array[point, joint]}; it must be finite, the chunk is refused')
    return array


def finite_difference(positions: Floats, period_ns: int) -> Floats:
    """Velocities ``[points, joints]`` of positions that are ``period_ns`` apart."""
    if len(positions) == 1:
        return np.zeros_like(positions)
    gradient: Floats = np.gradient(positions, period_ns * 1e-9, axis=0)
    return gradient
