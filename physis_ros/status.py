"""What all statuses on /diagnostics are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


@dataclass(frozen=True)
class Limit:
    """When a number becomes a warning, and when an error; NaN is neither."""

    warn: float
    error: float

    def above(self, value: float) -> bytes:
        """The level of a number that should be small."""
        return ERROR if value > self.error else WARN if value > self.warn else OK

    def below(self, value: float) -> bytes:
        """The level of a number that should be great."""
        return ERROR if value < self.error else WARN if value < self.warn else OK


def component(node: Node) -> str:
    """What its statuses are named after: the node with its namespace, without the first `/`."""
    return node.get_fully_qualified_name().lstrip('/')


def status_of(node: str, what: str, level: bytes, message: str, values: Mapping[str, object]
              ) -> DiagnosticStatus:
    """A status named as REP-107 has it."""
    return DiagnosticStatus(
        name=f'{node}: {what}', hardware_id=node, level=level, message=message,
        values=[KeyValue(key=key, value=f'{value:.4g}' if isinstance(value, float) else str(value))
                for key, value in values.items()])
