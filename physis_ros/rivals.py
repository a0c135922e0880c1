"""Who else publishes where only one node should: a controller follows whoever spoke last."""

from __future__ import annotations

from contextlib import suppress

from rclpy.node import Node

_UNKNOWN = '_NODE_NAME_UNKNOWN_'


class RivalWatch:
    """Warns, once, of each change in who else publishes on a topic; used by one thread."""

    def __init__(self, node: Node, topic: str) -> None:
        """``topic``: the full name of a topic that ``node`` has one publisher on."""
        self._node = node
        self._topic = topic
        self._said: list[str] = []

    def look(self) -> None:
        """Look at the graph."""
        found = sorted(
            f'{end.node_namespace.rstrip("/")}/{end.node_name}'
            for end in self._node.get_publishers_info_by_topic(self._topic)
            if end.node_name != _UNKNOWN)  # until it has been discovered
        with suppress(ValueError):
            found.remove(self._node.get_fully_qualified_name())
        if found and found != self._said:
            self._node.get_logger().warning(
                f'{", ".join(found)} also publishes on {self._topic}: a controller follows whoever '
                'was last; end all but one, or give each a topic of its own')
        self._said = found
