"""A rosbag2 recording (MCAP or SQLite), read message by message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geometry_msgs.msg import WrenchStamped
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from physis_core.errors import InputError, how_to_install

OBSERVATIONS = 'observations'
"""The bag inside the folder of a session."""

_TYPES: dict[str, Any] = {
    'sensor_msgs/msg/Image': Image, 'sensor_msgs/msg/CompressedImage': CompressedImage,
    'sensor_msgs/msg/JointState': JointState, 'geometry_msgs/msg/WrenchStamped': WrenchStamped,
    'std_msgs/msg/String': String}


@dataclass(frozen=True, eq=False)
class Recorded:
    """A message, the topic it is to be published on, and when it was recorded [ns]."""

    topic: str
    message: Any
    time_ns: int


class Bag:
    """What a policy can be given of a recording: sensor messages and instructions."""

    def __init__(self, path: Path, remap: Mapping[str, str]) -> None:
        """Open it.

        Args:
            path: the bag's folder, or a session of `wam_node` that holds one.
            remap: topics to publish on, by recorded topic; others keep theirs.

        Raises:
            InputError: rosbags is not installed, no bag, or nothing for a policy in it.
        """
        try:
            from rosbags.highlevel import AnyReader, AnyReaderError
            from rosbags.typesys import Stores, get_typestore
        except ImportError as error:
            raise InputError(f'replay needs rosbags; {how_to_install("replay")}') from error
        session = path / OBSERVATIONS
        if session.is_dir() and not (path / 'metadata.yaml').exists():
            path = session
        try:
            self._reader = AnyReader([path], default_typestore=get_typestore(Stores.LATEST))
            self._reader.open()
        except (AnyReaderError, OSError) as error:
            raise InputError(f'{path} is no readable rosbag2 recording ({error}); give the folder '
                             'that holds metadata.yaml, or a session of wam_node') from error
        self._connections = [connection for connection in self._reader.connections
                             if connection.msgtype in _TYPES]
        if not self._connections:
            self._reader.close()
            raise InputError(f'{path} has nothing for a policy (images, joint states, '
                             f'wrenches, texts); it has '
                             f'{", ".join(sorted(self._reader.topics))}')
        unknown = remap.keys() - {connection.topic for connection in self._connections}
        if unknown:
            self._reader.close()
            raise InputError(f'{path} has no topic {sorted(unknown)[0]} for a policy; it has '
                             f'{", ".join(sorted(c.topic for c in self._connections))}')
        self._remap = remap

    def topics(self) -> dict[str, Any]:
        """Message class of each topic to publish on."""
        return {self._named(connection.topic): _TYPES[connection.msgtype]
                for connection in self._connections}

    def types(self) -> dict[str, str]:
        """Name of the message type of each topic to publish on."""
        return {self._named(connection.topic): connection.msgtype
                for connection in self._connections}

    def expected(self) -> dict[str, int]:
        """Recorded messages of each topic to publish on."""
        return {self._named(connection.topic): connection.msgcount
                for connection in self._connections}

    @property
    def duration_s(self) -> float:
        """Length of the recording [s]."""
        return float(self._reader.duration) * 1e-9

    def messages(self) -> Iterator[Recorded]:
        """All of them, in the order in which they were recorded."""
        for connection, time_ns, raw in self._reader.messages(connections=self._connections):
            yield Recorded(self._named(connection.topic),
                           deserialize_message(bytes(raw), _TYPES[connection.msgtype]), time_ns)

    def close(self) -> None:
        """Let go of the files."""
        self._reader.close()

    def _named(self, topic: str) -> str:
        return self._remap.get(topic, topic)
