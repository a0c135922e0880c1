"""What an arm is told where chunks meet: both nodes on a real graph, measured at the commands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from fake_engine import POINTS
from node_bench import Bench
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger

from physis_core.delivery.ring import ServoFeedback, ServoState
from physis_ros.msg import ActionChunk

MS = 1_000_000
CHUNKS, COMMANDS = '/wam_node/action_chunk', '/arm_controller/commands'
POINT_NS, PERIOD_NS = 20 * MS, 160 * MS
SERVO_HZ, SPEED_LIMIT, ACCELERATION_LIMIT = 250.0, 8.0, 150.0  # Hz, rad/s, rad/s^2
TRIES = 20


@dataclass
class Arm:
    """A policy whose chunks the test makes, the real servo, and what the arm is told."""

    bench: Bench
    chunks: list[ActionChunk]
    commands: list[tuple[int, float]]  # number of the message, position of the first joint

    def servo(self) -> ServoFeedback | None:
        assert self.bench.node._delivery is not None
        return self.bench.node._delivery.look_at_servo(time.monotonic_ns())

    def state(self) -> ServoState | None:
        servo = self.servo()
        return None if servo is None else servo.state

    def begin(self) -> None:
        """A new epoch from wherever it is at rest."""
        assert self.bench.call(Trigger, '/wam_node/reset', Trigger.Request()).success
        self.bench.graph.wait_for(lambda: self.state() is ServoState.IDLE, 'rest')
        self.bench.graph.spin_for(0.05)
        self.chunks.clear()
        self.commands.clear()

    def wait_until(self, time_ns: int) -> None:
        self.bench.graph.spin_for(max(time_ns - time.monotonic_ns(), 0) / 1e9)

    def seamless(self, missed: int) -> bool:
        """Whether every tick was kept, and every command of it was heard."""
        servo = self.servo()
        numbers = [number for number, _ in self.commands]
        return (servo is not None and servo.missed == missed
                and numbers == list(range(numbers[0], numbers[0] + len(numbers))))


@pytest.fixture
def arm(ring_name: str, make_bench: Callable[..., Bench]) -> Iterator[Arm]:
    bench = make_bench(ring=ring_name, **{f'{source}.stale_ms': 60_000 for source in (
        'cameras.front', 'cameras.wrist', 'joints')})
    environment = {key: value for key, value in os.environ.items()
                   if key != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    limits = {'velocity': SPEED_LIMIT, 'acceleration': ACCELERATION_LIMIT}
    process = subprocess.Popen(
        [sys.executable, '-m', 'physis_ros.servo_node', '--ros-args', '-p', f'ring:={ring_name}',
         '-p', f'servo_hz:={SERVO_HZ}',
         *(part for name, limit in limits.items()
           for part in ('-p', f'limits.{name}:={[limit] * 6}'))], env=environment)
    chunks: list[ActionChunk] = []
    commands: list[tuple[int, float]] = []

    def told(message: Float64MultiArray, info: Mapping[str, Any]) -> None:
        commands.append((info['publication_sequence_number'], message.data[0]))

    bench.graph.probe.create_subscription(ActionChunk, CHUNKS, chunks.append, 100)
    bench.graph.probe.create_subscription(Float64MultiArray, COMMANDS, told, 1000)
    arm = Arm(bench, chunks, commands)
    try:
        bench.graph.wait_for(lambda: arm.state() is not None, 'the servo')
        bench.graph.discovered(bench.node, [CHUNKS])
        bench.graph.wait_for(lambda: bench.graph.probe.count_publishers(COMMANDS), 'commands')
        yield arm
    finally:
        process.terminate()  # killed, it would leave its DDS shared memory behind
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.parametrize('late_ms', [-60, 50])
def test_a_jump_at_a_splice_stays_within_the_limits(arm: Arm, late_ms: int) -> None:
    """Each chunk begins 0.3 rad away from where the one before ends, and turns round."""
    for _ in range(TRIES):
        arm.begin()
        servo = arm.servo()
        assert servo is not None
        begin_ns = time.monotonic_ns() + 150 * MS
        for chunk in range(6):
            due_ns = begin_ns + chunk * PERIOD_NS
            arm.wait_until(due_ns + late_ms * MS)
            arm.bench.stream.finish(due_ns=due_ns, start=0.3 * (chunk % 2),
                                    speed=1.0 if chunk % 2 else -1.0)
        arm.bench.graph.wait_for(lambda: arm.state() is ServoState.HOLDING, 'the end')
        arm.bench.graph.spin_for(0.1)
        if arm.seamless(servo.missed) and len(arm.chunks) == 6:
            break
    else:
        pytest.skip(f'the machine was too busy for a servo that keeps every tick, {TRIES} times')
    ends = [chunk.positions[-6] for chunk in arm.chunks]
    begins = [chunk.positions[0] for chunk in arm.chunks]
    assert min(abs(np.subtract(begins[1:], ends[:-1]))) > 0.1  # the plan does jump
    positions = np.array([position for _, position in arm.commands])
    steps = np.diff(positions)
    assert abs(steps).max() <= SPEED_LIMIT / SERVO_HZ + 1e-9
    # A change of speed within a step is seen in the differences of two.
    assert abs(np.diff(steps)).max() * SERVO_HZ <= 1.5 * ACCELERATION_LIMIT / SERVO_HZ + 1e-6
    # It does follow: it comes near both ends of what the chunks ask for.
    assert positions.max() > 0.3 and positions.min() < -0.05


def test_the_arm_never_moves_back_when_chunks_come_late_twice_or_in_another_order(arm: Arm
                                                                                  ) -> None:
    """All chunks are of one motion that only goes on: 0.5 rad/s of the clock."""
    arm.begin()
    begin_ns = time.monotonic_ns() + 150 * MS

    def finish(chunk: int) -> None:
        due_ns = begin_ns + chunk * PERIOD_NS // 2  # they overlap: an older one has points to play
        times_s = (due_ns - begin_ns + POINT_NS * np.arange(POINTS)) / 1e9
        arm.bench.stream.finish(
            due_ns=due_ns, number=chunk, positions=np.repeat(0.5 * times_s[:, None], 6, 1))

    for chunk, at_ms in ((0, -50), (1, 100), (2, 210), (3, 220), (1, 230), (2, 240), (4, 330),
                         (3, 340), (5, 460), (5, 470), (4, 475), (6, 500)):
        arm.wait_until(begin_ns + at_ms * MS)
        finish(chunk)
    arm.bench.graph.wait_for(lambda: arm.state() is ServoState.HOLDING, 'the end')
    arm.bench.graph.spin_for(0.1)
    assert [chunk.chunk_id for chunk in arm.chunks] == sorted(
        {chunk.chunk_id for chunk in arm.chunks})
    assert arm.chunks[-1].chunk_id == 6
    positions = np.array([position for _, position in arm.commands])
    assert np.diff(positions).min() >= -1e-6
    assert positions[-1] > 0.5 * (3 * PERIOD_NS + 7 * POINT_NS) / 1e9 - 0.01
