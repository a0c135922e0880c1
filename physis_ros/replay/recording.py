"""A session on disk: observations as a rosbag2 (MCAP), delivered chunks as lines of JSON.

`observations/` can be played with `ros2 bag play` or `physis replay`; `chunks.jsonl` is what
`physis bench handover --recording` reads.
"""

from __future__ import annotations

import array
import io
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import WrenchStamped
from rclpy.time import Time as RosTime
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from physis_core.delivery.chunk import PlannedChunk
from physis_core.errors import InputError
from physis_ros.ingest.image import PACKED, packed
from physis_ros.ingest.wrench import wrench_message
from physis_ros.parameters import Settings
from physis_ros.replay.bag import OBSERVATIONS
from physis_ros.replay.bag_writer import BagWriter

Stamped: TypeAlias = Image | CompressedImage | JointState | WrenchStamped


class Outlet(NamedTuple):
    """Where an input of the model is recorded, and as what message."""

    topic: str
    message: Callable[[np.ndarray], Stamped]


def outlets(settings: Settings, joints: Sequence[str], resolved: Callable[[str], str]
            ) -> dict[str, Outlet]:
    """The sensors of a node's parameters by the model's inputs, in the order of recording.

    Images come last: at a replay, they are what makes an observation of all that is there.

    Args:
        settings: of `wam_node`.
        joints: names, in the order of the model.
        resolved: the full name of a topic.
    """
    found: dict[str, Outlet] = {}
    if settings['joints.input']:
        found[settings['joints.input']] = Outlet(
            resolved(settings['joints.topic']), partial(_joint_state, list(joints)))
    if settings['wrench.input']:
        found[settings['wrench.input']] = Outlet(
            resolved(settings['wrench.topic']),
            partial(wrench_message, frame=settings['wrench.frame']))
    for camera in settings['camera_names']:
        # As what the node listens for, so that the same parameters replay it.
        compressed = settings[f'cameras.{camera}.transport'] == 'compressed'
        found[camera] = Outlet(
            resolved(settings[f'cameras.{camera}.topic']),
            _compressed_image if compressed else partial(
                _image, encoding=recorded_encoding(settings, camera)))
    return found


def recorded_encoding(settings: Settings, camera: str) -> str:
    """The encoding in which a camera's images are recorded: the one that is read into them at a
    replay, unless pixels are no longer what it is about (Bayer, YUV)."""
    encoding: str = settings[f'cameras.{camera}.encoding']
    return encoding if encoding in PACKED else 'rgb8'


class SessionRecording:
    """Writes one session.  The observations' thread and the chunks' thread have a file each;
    closing waits for whoever is writing."""

    def __init__(self, folder: Path, sensors: Mapping[str, Outlet], instruction_topic: str
                 ) -> None:
        """Begin a session in a new folder inside ``folder``.

        Args:
            folder: of all sessions.
            sensors: by the model's inputs, in the order of recording.
            instruction_topic: where the texts go.

        Raises:
            InputError: rosbags is not installed, or the folder cannot be written.
        """
        self.folder = _unused(folder / time.strftime('session-%Y%m%d-%H%M%S'))
        self._sensors = sensors
        self._instruction_topic = instruction_topic
        self._instruction = ''
        self._lock = threading.Lock()
        try:
            self._bag = BagWriter(self.folder / OBSERVATIONS)
            self._chunks = (self.folder / 'chunks.jsonl').open('w')
        except InputError as error:
            raise InputError(f'parameter `record`: {error}') from error

    def observation(self, arrays: Mapping[str, np.ndarray], instruction: str, captured: Time,
                    seen: Time) -> None:
        """Write an observation as the model sees it: stamped with its capture time, recorded when
        it was seen, so that a replay knows how old it was.

        The instruction under which it was made is written where it is another than before.
        """
        time_ns = RosTime.from_msg(seen).nanoseconds
        with self._lock:
            if instruction != self._instruction:
                self._instruction = instruction
                self._bag.write(self._instruction_topic, String(data=instruction), time_ns)
            for name, outlet in self._sensors.items():
                message = outlet.message(arrays[name])
                message.header.stamp = captured
                self._bag.write(outlet.topic, message, time_ns)

    def chunk(self, chunk: PlannedChunk) -> None:
        """Write a delivered chunk."""
        line = {name: value for name, value in vars(chunk).items()
                if name not in ('positions', 'velocities')}
        with self._lock:
            if not self._chunks.closed:
                self._chunks.write(
                    json.dumps({**line, 'positions': chunk.positions.tolist()}) + '\n')

    def close(self) -> None:
        """Complete the files."""
        with self._lock:
            self._chunks.close()
            self._bag.close()


def _unused(folder: Path) -> Path:
    """The folder, or one beside it where two sessions begin within a second."""
    names = itertools.chain([folder], (
        folder.with_name(f'{folder.name}-{number}') for number in itertools.count(2)))
    return next(name for name in names if not name.exists())


def _joint_state(names: list[str], positions: np.ndarray) -> JointState:
    return JointState(name=names, position=array.array('d', positions.astype(np.float64).tobytes()))


def _image(pixels: np.ndarray, encoding: str) -> Image:
    data = pixels if encoding == 'rgb8' else packed(pixels, encoding)
    height, width, channels = data.shape
    return Image(height=height, width=width, encoding=encoding, step=channels * width,
                 data=array.array('B', data.tobytes()))


def _compressed_image(pixels: np.ndarray) -> CompressedImage:
    """Without loss: what is replayed is what the model saw."""
    from PIL import Image as Picture  # compressed images came, so it is there

    stored = io.BytesIO()
    Picture.fromarray(pixels).save(stored, 'png', compress_level=1)
    return CompressedImage(format='png', data=array.array('B', stored.getvalue()))
