"""`wam_node` on a real graph, with an engine that the test plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

import rclpy
from fake_engine import FakeEngine
from graph import Graph, initialise
from node_bench import INPUT_TOPICS, Bench

from physis_ros.wam_node import WamNode


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(activate: bool = True, **parameters: object) -> Bench:
        initialise({name.replace('__', '.'): value for name, value in parameters.items()})
        engine = FakeEngine()
        bench = Bench(WamNode(lambda _: engine), engine, Graph())
        benches.append(bench)
        bench.graph.executor.add_node(bench.node)
        if activate:
            bench.node.trigger_configure()
            bench.node.trigger_activate()
            bench.graph.discovered(bench.node, INPUT_TOPICS)
        return bench

    yield make
    for bench in benches:
        bench.node.close()
        bench.graph.close()
        bench.node.destroy_node()
    rclpy.try_shutdown()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """An active node that is patient with sensors, as a busy machine needs it."""
    return make_bench(**{f'{source}.stale_ms': 60_000
                         for source in ('cameras.front', 'cameras.wrist', 'joints')})
