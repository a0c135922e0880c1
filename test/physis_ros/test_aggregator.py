"""config/diagnostic_aggregator.yaml has a place for every status that the nodes publish.

The aggregator is C++ and not here: its rules for GenericAnalyzer are checked instead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from node_bench import Bench

from physis_ros.servo_node import ServoNode

# What a GenericAnalyzer reads, and in which type: rclcpp ends a node that asks for another one.
FIELDS = {'type': str, 'path': str, 'contains': list, 'timeout': float, 'discard_stale': bool}
NAMESPACES = ('', 'left/', 'cell_1/arm/')


@pytest.fixture
def groups(repository: Path) -> dict[str, dict[str, Any]]:
    tree = yaml.safe_load((repository / 'config' / 'diagnostic_aggregator.yaml').read_text())
    assert tree.keys() == {'analyzers'}  # the name of the aggregator's node
    parameters = tree['analyzers']['ros__parameters']
    assert isinstance(parameters.pop('path'), str)
    assert isinstance(parameters.pop('pub_rate'), float)
    return parameters


def test_analyzers_have_what_the_aggregator_reads(groups: dict[str, dict[str, Any]]) -> None:
    for group in groups.values():
        assert group['type'] == 'diagnostic_aggregator/GenericAnalyzer'
        assert {'type', 'path', 'contains'} <= group.keys() <= FIELDS.keys()
        assert all(type(value) is FIELDS[field] for field, value in group.items())
    paths = [group['path'] for group in groups.values()]
    assert len(set(paths)) == len(paths)


def test_every_status_that_is_published_has_one_place(
        make_bench: Callable[..., Bench], groups: dict[str, dict[str, Any]]) -> None:
    bench = make_bench()
    bench.graph.says('wam_node: stages', '')
    servo = ServoNode()
    try:
        names = [*bench.graph.diagnostics, servo._status().name]
    finally:
        servo.destroy_node()
    assert len(names) >= 14
    used = set()
    for name in names:
        for namespace in NAMESPACES:
            places = [group['path'] for group in groups.values()
                      if any(text in f'{namespace}{name}' for text in group['contains'])]
            assert len(places) == 1, f'{namespace}{name}: {places}'
            used.update(places)
    assert used == {group['path'] for group in groups.values()}


def test_only_what_a_living_node_always_says_goes_stale(
        bench: Bench, groups: dict[str, dict[str, Any]]) -> None:
    lasting = [text for group in groups.values() if not group.get('discard_stale')
               for text in group['contains']]
    for how in (bench.node.trigger_deactivate, bench.node.trigger_cleanup):
        how()
        bench.graph.spin_for(0.1)  # what was on its way has come
        bench.graph.diagnostics.clear()
        bench.graph.says('wam_node: node', '')
        assert set(lasting) <= bench.graph.diagnostics.keys()
