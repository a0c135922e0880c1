"""Writes a rosbag2 recording (MCAP)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rclpy.serialization import serialize_message

from physis_core.errors import InputError, how_to_install

_BAG_VERSION = 9


class BagWriter:
    """A new recording; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Begin it.

        Args:
            folder: of the recording; it does not exist yet.

        Raises:
            InputError: rosbags is not installed, the folder exists, or it cannot be written.
        """
        try:
            from rosbags.rosbag2 import StoragePlugin, Writer, WriterError
            from rosbags.typesys import Stores, get_typestore
        except ImportError as error:
            raise InputError(f'recording needs rosbags; {how_to_install("replay")}') from error
        self._types = get_typestore(Stores.LATEST)
        self._connections: dict[str, Any] = {}
        try:
            self._bag = Writer(folder, version=_BAG_VERSION, storage_plugin=StoragePlugin.MCAP)
            self._bag.open()
        except WriterError as error:
            raise InputError(f'{folder} exists already; name a new folder') from error
        except OSError as error:
            raise InputError(f'{folder} cannot be written ({error.strerror}); name another folder'
                             ) from error

    def write(self, topic: str, message: Any, time_ns: int) -> None:
        """Add a message; the first one of a topic says its type."""
        connection = self._connections.get(topic)
        if connection is None:
            connection = self._connections[topic] = self._bag.add_connection(
                topic, _type_name(message), typestore=self._types)
        self._bag.write(connection, time_ns, serialize_message(message))

    def close(self) -> None:
        """Complete the file."""
        self._bag.close()


def _type_name(message: Any) -> str:
    package = type(message).__module__.partition('.')[0]
    return f'{package}/msg/{type(message).__name__}'
