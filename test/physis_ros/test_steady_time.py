"""A jump of ROS time is told from a clock that is slow, late, or stands still."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_ros import steady_time
from physis_ros.steady_time import SteadyTime

MS = 1_000_000
LOOK_NS = 20 * MS


class Clocks:
    """ROS time and steady time, both moved by the test."""

    def __init__(self) -> None:
        self.ros_ns = 5_000_000 * MS
        self.steady_ns = 1_000_000 * MS

    def now(self) -> SimpleNamespace:
        return SimpleNamespace(nanoseconds=self.ros_ns)

    def monotonic_ns(self) -> int:
        return self.steady_ns

    def run(self, times: SteadyTime, seconds: float, speed: float = 1.0) -> list[int]:
        """Look often while both run; the jumps that were seen."""
        jumps = []
        for _ in range(round(seconds * 1e9 / LOOK_NS)):
            self.steady_ns += LOOK_NS
            self.ros_ns += round(LOOK_NS * speed)
            jumps.append(times.jump_ns())
        return [jump for jump in jumps if jump]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    clocks = Clocks()
    monkeypatch.setattr(steady_time, 'time', clocks)
    yield clocks


@pytest.fixture
def times(clocks: Clocks) -> SteadyTime:
    return SteadyTime(clocks, 100.0)


@pytest.mark.parametrize('jump_s', [100.0, 0.2, -100.0, -0.2])
def test_a_jump_is_seen_once_and_its_time_is_the_new_one(
        clocks: Clocks, times: SteadyTime, jump_s: float) -> None:
    assert not clocks.run(times, 1.0)
    clocks.ros_ns += round(jump_s * 1e9)
    assert clocks.run(times, 3.0) == [round(jump_s * 1e9)]
    assert times.offset_ns == clocks.ros_ns - clocks.steady_ns


def test_a_clock_message_that_is_late_is_no_jump(clocks: Clocks, times: SteadyTime) -> None:
    """A busy machine: /clock is not heard for a while, and then it is where it must be."""
    clocks.run(times, 1.0)
    held_ns, clocks.ros_ns = clocks.ros_ns, clocks.ros_ns
    assert not clocks.run(times, 0.5, speed=0.0)
    clocks.ros_ns = held_ns + 500 * MS
    assert not clocks.run(times, 1.0)


def test_a_simulation_that_pauses_or_is_slow_does_not_jump(
        clocks: Clocks, times: SteadyTime) -> None:
    for speed in (1.0, 0.0, 1.0, 0.25, 1.0, 2.0):
        assert not clocks.run(times, 10.0, speed), speed


def test_a_jump_after_a_pause_is_seen(clocks: Clocks, times: SteadyTime) -> None:
    clocks.run(times, 5.0, speed=0.0)
    clocks.run(times, 3.0)
    clocks.ros_ns += 1000 * MS
    assert clocks.run(times, 1.0) == [1000 * MS]


def test_memory_is_bounded(clocks: Clocks, times: SteadyTime) -> None:
    clocks.run(times, 60.0)
    assert len(times._offsets) <= 256
