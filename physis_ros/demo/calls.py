"""Services called from a thread that also spins; every wait has a limit and looks after others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.executors import Executor
from rclpy.node import Node

from physis_core.errors import PhysisError

_SPIN_S = 0.05


class NoAnswer(PhysisError):
    """Something that was waited for did not happen in time."""


class Calls:
    """Spins the executor while it waits; `watch` is called meanwhile and may raise."""

    def __init__(self, node: Node, executor: Executor, watch: Callable[[], None]) -> None:
        self._node = node
        self._executor = executor
        self._watch = watch
        self._clients: dict[str, Any] = {}

    def spin(self, duration_s: float) -> None:
        """Spin for a while."""
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=min(left_s, _SPIN_S))
            self._watch()

    def wait_until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Spin until the condition holds.

        Raises:
            NoAnswer: it did not within `limit_s`; the text says `what` was waited for.
        """
        until_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until_s:
                raise NoAnswer(f'waited {limit_s:.0f} s for {what}; the logs of the processes '
                               'say why it did not come')
            self._executor.spin_once(timeout_sec=_SPIN_S)
            self._watch()

    def call(self, kind: Any, service: str, request: Any, limit_s: float = 10.0) -> Any:
        """Call a service and return its response.

        Raises:
            NoAnswer: there was no answer within `limit_s`, or the answer was a refusal.
        """
        client = self._clients.get(service)
        if client is None:
            client = self._clients[service] = self._node.create_client(kind, service)
        self.wait_until(client.service_is_ready, limit_s, f'the service {service}')
        future = client.call_async(request)
        self.wait_until(future.done, limit_s, f'the answer of {service}')
        response = future.result()
        if not response.success:
            raise NoAnswer(f'{service} refused: {response.message}')
        return response
