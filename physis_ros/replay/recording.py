"""A session on disk: observations as a rosbag2 (MCAP), delivered chunks as lines of JSON.

`observations/` can be played with `ros2 bag play` or `physis replay`; `chunks.jsonl` is what
`physis bench handover --recording` reads.
"""

from __future__ import annotations

import array
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.time import Time as RosTime
from sensor_msgs.msg import Image, JointState

from physis_core.delivery.chunk import PlannedChunk
from physis_core.errors import InputError
from physis_ros.replay.bag_writer import BagWriter


class SessionRecording:
    """Writes one session.  The observations' thread and the chunks' thread have a file each;
    closing waits for whoever is writing."""

    def __init__(self, folder: Path, cameras: Mapping[str, str], joints_input: str,
                 joints_topic: str, joint_names: tuple[str, ...]) -> None:
        """Begin a session in a new folder inside ``folder``.

        Args:
            folder: of all sessions.
            cameras: topic of each camera.
            joints_input: name of the joints among the arrays; empty: there are none.
            joints_topic: their topic.
            joint_names: in the order of the array.

        Raises:
            InputError: rosbags is not installed, or the folder cannot be written.
        """
        self.folder = folder / time.strftime('session-%Y%m%d-%H%M%S')
        self._cameras = frozenset(cameras)
        self._joints_input = joints_input
        self._joint_names = list(joint_names)
        self._lock = threading.Lock()
        self._topics = {**cameras, joints_input: joints_topic}
        try:
            self._bag = BagWriter(self.folder / 'observations')
            self._chunks = (self.folder / 'chunks.jsonl').open('w')
        except InputError as error:
            raise InputError(f'parameter `record`: {error}') from error

    def observation(self, arrays: Mapping[str, np.ndarray], captured: Time, seen: Time) -> None:
        """Write an observation as the model sees it: stamped with its capture time, recorded when
        it was seen, so that a replay knows how old it was.

        Images come last: at a replay, they are what makes an observation of all that is there.
        """
        time_ns = RosTime.from_msg(seen).nanoseconds
        with self._lock:
            for name, value in sorted(arrays.items(), key=lambda item: item[0] in self._cameras):
                message = (self._joint_state(value) if name == self._joints_input
                           else _image(value))
                message.header.stamp = captured
                self._bag.write(self._topics[name], message, time_ns)

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

    def _joint_state(self, positions: np.ndarray) -> JointState:
        return JointState(name=self._joint_names,
                          position=array.array('d', positions.astype(np.float64).tobytes()))


def _image(pixels: np.ndarray) -> Image:
    height, width, _ = pixels.shape
    return Image(height=height, width=width, encoding='rgb8', step=3 * width,
                 data=array.array('B', pixels.tobytes()))
