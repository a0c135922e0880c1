"""`servo_node` as a process: it plays the ring, rests, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from graph import Graph
from rclpy.parameter import Parameter
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger

from physis_core.delivery.chunk import PlannedChunk, finite_difference
from physis_core.delivery.ring import RingFormat, RingWriter, ServoState
from physis_ros.servo_node import ServoNode

MS = 1_000_000
COMMANDS = '/arm_controller/commands'
FORM = RingFormat(('a', 'b'), max_points=50)


def chunk(number: int, due_ns: int, *, start: float = 0.0, speed: float = 0.5, points: int = 25,
          epoch: int = 1) -> PlannedChunk:
    positions = np.repeat((start + speed * 0.02 * np.arange(points))[:, None], 2, 1)
    return PlannedChunk(epoch, number, due_ns, 20 * MS, due_ns + points * 20 * MS, due_ns, due_ns,
                        due_ns, due_ns, positions, finite_difference(positions, 20 * MS))


@pytest.fixture
def graph() -> Iterator[Graph]:
    rclpy.init()
    graph = Graph()
    yield graph
    graph.close()
    rclpy.try_shutdown()


@pytest.fixture
def start(ring_name: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    environment = {key: value for key, value in os.environ.items()
                   if key != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}

    def start(*parameters: str) -> subprocess.Popen[str]:
        arguments = [f'ring:={ring_name}', *parameters]
        processes.append(subprocess.Popen(
            [sys.executable, '-m', 'physis_ros.servo_node', '--ros-args',
             *(part for argument in arguments for part in ('-p', argument))],
            env=environment, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()  # killed, it would leave its DDS shared memory behind
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def tell(ring: RingWriter, *, epoch: int = 1, active: bool = True, stop: str = '') -> None:
    ring.tell(epoch=epoch, active=active, stop=stop, heartbeat_ns=time.monotonic_ns())


def state(ring: RingWriter) -> ServoState | None:
    feedback = ring.feedback()
    return None if feedback is None else feedback.state


def test_it_plays_until_valid_until_then_holds_and_ends_cleanly(
        graph: Graph, ring_name: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    heard = graph.listen(Float64MultiArray, COMMANDS)
    process = start()
    ring = RingWriter(ring_name, FORM)
    tell(ring, active=False)
    graph.wait_for(lambda: state(ring) is ServoState.IDLE, 'the servo')
    graph.wait_for(lambda: graph.probe.count_publishers(COMMANDS), 'its publisher')
    assert not heard  # inactive: nothing is said
    due_ns = time.monotonic_ns() + 200 * MS
    tell(ring)
    ring.write(chunk(0, due_ns), np.zeros(2))
    graph.wait_for(lambda: state(ring) is ServoState.PLAYING, 'playing')
    graph.wait_for(lambda: state(ring) is ServoState.HOLDING, 'holding')
    assert time.monotonic_ns() >= due_ns + 500 * MS
    effects = ring.new_effects()
    assert [(effect.epoch, effect.chunk) for effect in effects] == [(1, 0)]
    assert effects[0].effect_ns >= due_ns
    feedback = ring.feedback()
    assert feedback is not None and feedback.underruns == 1
    graph.wait_for(lambda: abs(heard[-1].data[0] - feedback.position[0]) < 1e-9, 'the hold')
    positions = np.array([message.data for message in heard])
    assert positions[0] == pytest.approx(0.0, abs=1e-3)
    # 0.5 rad/s for half a second, and the way to rest; no step is more than a few ticks long.
    assert 0.24 <= positions[-1, 0] <= 0.27
    assert (np.diff(positions[:, 0]) >= -1e-12).all()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    ring.close()


def test_it_says_once_that_it_waits_and_when_the_ring_has_come(
        graph: Graph, ring_name: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start()
    graph.says('servo_node: servo', f'waiting for ring `{ring_name}`')
    ring = RingWriter(ring_name, FORM)
    tell(ring)
    graph.wait_for(lambda: state(ring) is not None, 'the servo')
    process.terminate()
    _, log = process.communicate(timeout=20)
    lines = [line.partition('[servo_node]: ')[2] for line in log.splitlines()
             if f'`{ring_name}`' in line]
    assert len(lines) == 2, log
    assert lines[0].startswith(f'waiting for ring `{ring_name}` of wam_node')
    assert lines[1] == f'playing from ring `{ring_name}` at 250 Hz'
    ring.close()


def test_a_stop_at_the_servo_is_latched_until_a_new_epoch(
        graph: Graph, ring_name: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    start()
    ring = RingWriter(ring_name, FORM)
    tell(ring)
    graph.wait_for(lambda: state(ring) is not None, 'the servo')
    client = graph.probe.create_client(Trigger, '/servo_node/stop_request')
    graph.wait_for(client.service_is_ready, 'its service')
    ring.write(chunk(0, time.monotonic_ns(), points=50), np.zeros(2))
    graph.wait_for(lambda: state(ring) is ServoState.PLAYING, 'playing')
    answer = client.call_async(Trigger.Request())
    graph.wait_for(answer.done, 'an answer')
    graph.wait_for(lambda: state(ring) is ServoState.STOPPED, 'the stop')
    ring.write(chunk(1, time.monotonic_ns(), points=50), np.zeros(2))
    status = graph.says('servo_node: servo', 'stopped: stop requested at servo_node')
    assert state(ring) is ServoState.STOPPED
    assert status.level == b'\x02'
    tell(ring, epoch=2)
    ring.write(chunk(0, time.monotonic_ns(), epoch=2, points=50), np.zeros(2))
    graph.wait_for(lambda: state(ring) is ServoState.PLAYING, 'playing again')
    ring.close()


def test_a_new_writer_is_taken_when_the_old_one_is_gone(
        graph: Graph, ring_name: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    start()
    first = RingWriter(ring_name, FORM)
    tell(first)
    graph.wait_for(lambda: state(first) is not None, 'the servo')
    first.write(chunk(0, time.monotonic_ns(), points=50), np.zeros(2))
    graph.wait_for(lambda: state(first) is ServoState.PLAYING, 'playing')
    first.close()
    second = RingWriter(ring_name, FORM)
    tell(second, epoch=7)
    graph.wait_for(lambda: state(second) is not None, 'the servo at the new ring')
    second.write(chunk(0, time.monotonic_ns(), epoch=7, points=50), np.zeros(2))
    graph.wait_for(lambda: state(second) is ServoState.PLAYING, 'playing from the new ring')
    second.close()


def test_it_says_what_is_not_permitted_and_what_it_runs_under(
        graph: Graph, ring_name: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    start('real_time.priority:=0', 'real_time.cpus:=[4095]')
    ring = RingWriter(ring_name, FORM)
    status = graph.says('servo_node: servo', 'idle')
    values = {value.key: value.value for value in status.values}
    assert values['scheduling'] == 'normal'
    graph.wait_for(lambda: 'CPUs [4095] are not available' in str(
        graph.diagnostics['servo_node: servo'].values), 'the refusal')
    ring.close()


@pytest.mark.parametrize(('parameter', 'sentence'), [
    ('servo_hz:=5000', 'parameter `servo_hz` is 5000.0; it must be between 50.0 and 1000.0'),
    ('limits.velocity:=[1.0]', 'has 1 numbers, the ring has the 2 joints a, b'),
    ('limits.velocity:=[1.0, -2.0]',
     'parameter `limits.velocity` is -2.0 for joint 2 of 2; it must be above 0'),
    ('servo_hs:=500.0',
     'parameter `servo_hs` is not known to servo_node; the closest that is known is `servo_hz`'),
])
def test_a_wrong_parameter_is_one_sentence(
        ring_name: str, start: Callable[..., subprocess.Popen[str]], parameter: str, sentence: str
        ) -> None:
    ring = RingWriter(ring_name, FORM)
    process = start(parameter)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert sentence in said and 'Traceback' not in said
    ring.close()


@pytest.mark.parametrize(('parameters', 'sentence'), [
    (['limits.velocity:=[1.0, -2.0]'], '-2.0 for joint 2 of 2; it must be above 0'),
    (['limits.acceleration:=[.nan]'], 'nan for joint 1 of 1; it must be above 0'),
    (['limits.lower:=[-1.0, 1.0]', 'limits.upper:=[1.0, 1.0]'],
     '`limits.lower` is 1.0 for joint 2 of 2; it must be below `limits.upper`, which is 1.0'),
    (['limits.lower:=[-1.0, -1.0]', 'limits.velocity:=[8.0]'],
     '`limits.velocity` has 1 numbers, `limits.lower` has 2'),
])
def test_bad_limits_are_refused_before_there_is_a_ring(
        start: Callable[..., subprocess.Popen[str]], parameters: list[str], sentence: str) -> None:
    process = start(*parameters)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert sentence in said and 'Traceback' not in said


def test_limits_that_do_not_fit_the_ring_are_the_last_status(
        graph: Graph, ring_name: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start('limits.velocity:=[1.0]')
    graph.says('servo_node: servo', 'waiting for ring')
    ring = RingWriter(ring_name, FORM)
    status = graph.says('servo_node: servo', 'ended: parameter `limits.velocity` has 1 numbers')
    assert status.level == DiagnosticStatus.ERROR
    process.communicate(timeout=60)
    assert process.returncode == 1
    ring.close()


def test_a_rate_may_be_a_whole_number(
        graph: Graph, ring_name: str, start: Callable[..., subprocess.Popen[str]]) -> None:
    start('servo_hz:=500')
    ring = RingWriter(ring_name, FORM)
    tell(ring)
    feedback = graph.wait_for(ring.feedback, 'the servo')
    assert feedback.rate_hz == 500.0
    ring.close()


def test_a_change_that_would_not_count_is_refused(graph: Graph) -> None:
    node = ServoNode()
    try:
        refused, taken = node.set_parameters([
            Parameter('servo_hz', value=500.0), Parameter('warn.missed_ratio', value=0.2)])
        assert refused.reason == (
            'parameter `servo_hz` counts from the start of servo_node on: start it anew')
        assert taken.successful and node.settings['warn.missed_ratio'] == 0.2
        assert node.set_parameters([Parameter('servo_hz', value=250.0)])[0].successful  # as it is
    finally:
        node.destroy_node()
