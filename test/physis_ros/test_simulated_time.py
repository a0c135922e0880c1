"""Simulated time: stamps follow it, the engine does not, and jumps begin a new epoch."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from node_bench import Bench
from rclpy.qos import QoSProfile
from rclpy.time import Time
from rosgraph_msgs.msg import Clock

from physis_ros.msg import ActionChunk

CHUNKS = '/wam_node/action_chunk'
BEGIN_NS = 5_000_000_000_000


class SimulatedClock:
    """A /clock that runs in real time from wherever it is set to."""

    def __init__(self, bench: Bench) -> None:
        self._publisher = bench.graph.probe.create_publisher(Clock, '/clock', QoSProfile(depth=1))
        self._offset_ns = BEGIN_NS - time.monotonic_ns()
        bench.graph.wait_for(self._publisher.get_subscription_count, '/clock')
        self.tick()
        bench.graph.wait_for(
            lambda: bench.node.get_clock().now().nanoseconds >= BEGIN_NS, 'simulated time')

    def jump(self, seconds: float) -> None:
        self._offset_ns += round(seconds * 1e9)

    def tick(self) -> Time:
        now = Time(nanoseconds=time.monotonic_ns() + self._offset_ns)
        self._publisher.publish(Clock(clock=now.to_msg()))
        return now


def sense(bench: Bench, clock: SimulatedClock) -> None:
    """Everything once, stamped with simulated time."""
    stamp = clock.tick().to_msg()
    bench.graph.feel(stamp=stamp)
    bench.graph.show('front', stamp=stamp)
    bench.graph.show('wrist', stamp=stamp)


def observe(bench: Bench, clock: SimulatedClock) -> None:
    count = len(bench.stream.observed)

    def seen() -> bool:
        sense(bench, clock)
        return len(bench.stream.observed) > count

    bench.graph.wait_for(seen, 'an observation')


@pytest.mark.parametrize('jump_s', [3600.0, -1200.0])
def test_a_jump_begins_a_new_epoch_and_it_goes_on(make_bench: Callable[..., Bench], jump_s: float
                                                  ) -> None:
    bench = make_bench(use_sim_time=True)
    clock = SimulatedClock(bench)
    observe(bench, clock)
    bench.graph.spin_for(0.05)
    stream = bench.stream
    resets = stream.events.count('reset')
    clock.jump(jump_s)

    def jumped() -> bool:
        clock.tick()
        return stream.events.count('reset') > resets

    bench.graph.wait_for(jumped, 'a new epoch')
    observe(bench, clock)  # stamps of after the jump are understood
    observed = stream.observed[-1]
    assert 0 <= observed.received_ns - observed.capture_ns < 1_000_000_000


def test_a_clock_that_jumps_all_the_time_does_not_fill_the_log(
        make_bench: Callable[..., Bench], capfd: pytest.CaptureFixture[str]) -> None:
    bench = make_bench(use_sim_time=True)
    clock = SimulatedClock(bench)
    observe(bench, clock)
    stream = bench.stream
    resets = stream.events.count('reset')
    begin_s = time.monotonic()

    def jumped() -> bool:
        clock.jump(100.0)
        clock.tick()
        return stream.events.count('reset') >= resets + 30

    bench.graph.wait_for(jumped, 'thirty epochs')
    lines = [line for line in capfd.readouterr().err.splitlines() if 'ROS time jumped' in line]
    assert 1 <= len(lines) <= 2 + (time.monotonic() - begin_s) / 2


def test_stamps_of_chunks_are_in_simulated_time(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(use_sim_time=True)
    clock = SimulatedClock(bench)
    observe(bench, clock)
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    finished = bench.stream.finish(due_in_ms=40.0)
    bench.graph.wait_for(lambda: heard, 'a chunk')
    stamp_ns = Time.from_msg(heard[0].header.stamp).nanoseconds
    assert stamp_ns >= BEGIN_NS
    age_ns = stamp_ns - Time.from_msg(heard[0].capture_stamp).nanoseconds
    assert age_ns == finished.due_ns - finished.capture_ns
