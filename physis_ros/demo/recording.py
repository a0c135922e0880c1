"""What was seen on the topics, as plain data: the raw material of every number in the report.

Times are nanoseconds of the ROS clock. Every series is bounded: a run without end keeps the
latest part of itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_MINUTES_KEPT = 15
_FASTEST_HZ = 500
_EVENTS_KEPT = _MINUTES_KEPT * 60 * _FASTEST_HZ
_CHUNKS_KEPT = _MINUTES_KEPT * 60 * 50
_JOINT_SECONDS_KEPT = 15
_EPISODES_KEPT = 200
_FRAMES_PER_EPISODE = 60
_STATES_PER_EPISODE = 1000


@dataclass
class ChunkSeen:
    """One action chunk, as its message says, and what the controller did with it.

    Attributes:
        epoch: counts resets of the stream.
        chunk: counts chunks of the epoch.
        planned_ns: when control point 0 was to take effect.
        capture_ns: capture of the oldest input.
        capture_s: capture to engine, as measured by the sender [s].
        queue_s: engine to first stage, as measured by the sender [s].
        response_s: first stage to finished chunk, as measured by the sender [s].
        sent_on_time: what the sender says.
        arrived_ns: when the commands' receiver had it; None: it never did.
        effect_ns: when the first command of it went to the arm; None: it never did.
        rejected: whether the controller refused it.
    """

    epoch: int
    chunk: int
    planned_ns: int
    capture_ns: int
    capture_s: float
    queue_s: float
    response_s: float
    sent_on_time: bool
    arrived_ns: int | None = None
    effect_ns: int | None = None
    rejected: bool = False

    @property
    def on_time(self) -> bool:
        """Whether it arrived by its planned start, and was taken."""
        return (self.arrived_ns is not None and self.arrived_ns <= self.planned_ns
                and not self.rejected)

    @property
    def age_s(self) -> float | None:
        """Capture to effect [s]; None: it never took effect."""
        return None if self.effect_ns is None else (self.effect_ns - self.capture_ns) / 1e9

    @property
    def handoff_s(self) -> float | None:
        """Finished chunk to effect [s]: the age that the sender's three parts do not explain."""
        age_s = self.age_s
        if age_s is None:
            return None
        return age_s - self.capture_s - self.queue_s - self.response_s


@dataclass
class EpisodeSeen:
    """One attempt at the task.

    Attributes:
        number: from 0.
        seed: of the scene.
        began_ns: when the policy was let loose.
        ended_ns: when success or the time limit was seen; 0: it is under way.
        simulated_s: simulated time it took [s].
        slipped_s: time the simulation did not follow during it [s].
        success: whether the task was done.
        frames: (camera, image `[64, 64, 3]`) as published, about two a second.
        states: (time, numbers of a `Snapshot`), 25 a second.
    """

    number: int
    seed: int
    began_ns: int
    ended_ns: int = 0
    simulated_s: float = 0.0
    slipped_s: float = 0.0
    success: bool = False
    frames: deque[tuple[str, NDArray[np.uint8]]] = field(
        default_factory=lambda: deque(maxlen=_FRAMES_PER_EPISODE))
    states: deque[tuple[int, list[float]]] = field(
        default_factory=lambda: deque(maxlen=_STATES_PER_EPISODE))


def _times() -> deque[int]:
    return deque(maxlen=_EVENTS_KEPT)


def _joints() -> deque[tuple[int, tuple[float, ...]]]:
    return deque(maxlen=_JOINT_SECONDS_KEPT * _FASTEST_HZ)


@dataclass
class Recording:
    """Everything that was seen.

    Attributes:
        sensors: arrival times by source.
        servo: arrival times of the servo's commands.
        targets: arrival times of the joint targets that moved the arm.
        chunks: by (epoch, chunk), in the order in which they came.
        episodes: in order.
        measured: (time, joint positions [rad]), the latest seconds.
        commanded: (time, joint targets [rad]), the latest seconds.
        diagnostics: the latest values by status name.
    """

    sensors: dict[str, deque[int]] = field(default_factory=dict)
    servo: deque[int] = field(default_factory=_times)
    targets: deque[int] = field(default_factory=_times)
    chunks: dict[tuple[int, int], ChunkSeen] = field(default_factory=dict)
    episodes: deque[EpisodeSeen] = field(
        default_factory=lambda: deque(maxlen=_EPISODES_KEPT))
    measured: deque[tuple[int, tuple[float, ...]]] = field(default_factory=_joints)
    commanded: deque[tuple[int, tuple[float, ...]]] = field(default_factory=_joints)
    diagnostics: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def add_sensor(self, source: str, time_ns: int) -> None:
        """Count one reading of a source."""
        self.sensors.setdefault(source, _times()).append(time_ns)

    def add_chunk(self, chunk: ChunkSeen) -> None:
        """Keep a chunk; the oldest goes when there are too many."""
        self.chunks[(chunk.epoch, chunk.chunk)] = chunk
        if len(self.chunks) > _CHUNKS_KEPT:
            del self.chunks[next(iter(self.chunks))]
