"""What an observation is put together from, on a real graph."""

from __future__ import annotations

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from graph import NAMES
from node_bench import Bench


def test_images_meet_the_joint_states_that_came_with_them(bench: Bench) -> None:
    bench.observe()
    observed = bench.stream.observed
    for position in (0.1, 0.2, 0.3):
        observed.clear()
        # All of it is there before the node looks.
        bench.graph.feel(dict.fromkeys(NAMES, position))
        bench.graph.show('front')
        bench.graph.show('wrist')
        bench.graph.wait_for(lambda: observed, 'an observation')
        assert observed[-1].arrays['joints'] == pytest.approx([position] * len(NAMES))
