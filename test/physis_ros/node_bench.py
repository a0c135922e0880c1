"""The node under test, the engine that the test plays, and the graph around both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fake_engine import FakeEngine, FakeStream
from graph import Graph

from physis_ros.wam_node import WamNode

INPUT_TOPICS = ('/camera/front/image_raw', '/camera/wrist/image_raw', '/joint_states')


@dataclass
class Bench:
    """The node under test and what surrounds it."""

    node: WamNode
    engine: FakeEngine
    graph: Graph

    @property
    def stream(self) -> FakeStream:
        """The newest stream."""
        return self.engine.streams[-1]

    def observe(self) -> None:
        """Sense everything until it has reached the engine: images are sent with best effort."""
        count = len(self.stream.observed)

        def seen() -> bool:
            self.graph.sense()
            self.graph.spin_for(0.02)
            return len(self.stream.observed) > count

        self.graph.wait_for(seen, 'an observation')

    def listen(self, *topics: tuple[type, str]) -> Sequence[list[Any]]:
        """What comes on each of the topics from now on, once they are connected."""
        heard = [self.graph.listen(kind, topic) for kind, topic in topics]
        self.graph.discovered(self.node, [topic for _, topic in topics])
        return heard

    def service(self, kind: type, name: str) -> Callable[[Any], Any]:
        """A service that is ready: call it with a request to get its response."""
        client = self.graph.probe.create_client(kind, name)
        self.graph.wait_for(client.service_is_ready, name)

        def call(request: Any) -> Any:
            future = client.call_async(request)
            self.graph.wait_for(future.done, f'an answer of {name}')
            return future.result()

        return call

    def call(self, kind: type, name: str, request: object) -> Any:
        """The answer of a service."""
        return self.service(kind, name)(request)
