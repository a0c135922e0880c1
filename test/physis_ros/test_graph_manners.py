"""Manners on a shared graph: quality of service, namespaces, silence while inactive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from fake_engine import FakeEngine
from graph import NAMES, Graph, initialise
from node_bench import Bench

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from physis_ros.msg import ActionChunk, StreamReport
from physis_ros.wam_node import WamNode

MS = 1_000_000
CHUNKS, TRAJECTORIES = '/wam_node/action_chunk', '/arm_controller/joint_trajectory'
REPORTS = '/wam_node/stream_report'


# -- others -------------------------------------------------------------------------------------


def test_whoever_else_publishes_to_the_controller_is_named_once(
        bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.graph.says('wam_node: node', '')  # nobody else, and nobody is named
    bench.graph.probe.create_publisher(JointTrajectory, TRAJECTORIES, 1)
    said: list[str] = []

    def named() -> bool:
        said.extend(line for line in capfd.readouterr().err.splitlines()
                    if 'also publishes' in line)
        return bool(said)

    bench.graph.wait_for(named, 'the other one')
    bench.graph.diagnostics.clear()
    bench.graph.says('wam_node: node', '')  # it has looked again
    named()
    assert len(said) == 1
    assert f'/probe also publishes on {TRAJECTORIES}' in said[0]


# -- quality of service -------------------------------------------------------------------------


@pytest.mark.parametrize('topic', [CHUNKS, TRAJECTORIES])
def test_actions_are_offered_with_a_deadline_and_do_not_outlive_their_horizon(
        bench: Bench, topic: str) -> None:
    (offered,) = bench.graph.wait_for(
        lambda: bench.graph.probe.get_publishers_info_by_topic(topic), topic)
    assert offered.qos_profile.deadline.nanoseconds == 2 * 160 * MS
    assert bench.node._policy is not None
    assert offered.qos_profile.lifespan.nanoseconds == bench.node._policy.points * 20 * MS
    assert offered.qos_profile.reliability == ReliabilityPolicy.RELIABLE


def test_a_receiver_that_asks_for_a_deadline_is_told_when_chunks_stay_away(bench: Bench) -> None:
    missed: list[object] = []
    heard: list[ActionChunk] = []
    bench.graph.probe.create_subscription(
        ActionChunk, CHUNKS, heard.append,
        QoSProfile(depth=10, deadline=Duration(nanoseconds=2 * 160 * MS)),
        event_callbacks=SubscriptionEventCallbacks(deadline=missed.append))
    bench.graph.discovered(bench.node, [CHUNKS])
    bench.stream.finish()
    bench.graph.wait_for(lambda: heard, 'a chunk')  # so the deadlines are compatible
    bench.graph.wait_for(lambda: missed, 'the deadline to be missed')


def test_the_quality_asked_of_each_sensor_is_a_parameter(make_bench: Callable[..., Bench]) -> None:
    make_bench(**{'cameras.front.reliability': 'reliable', 'cameras.front.depth': 3,
                  'joints.depth': 20})
    # Depth is not part of discovery, so only the other is seen from outside.
    graph = Graph()
    try:
        asked = {topic: graph.wait_for(
            lambda topic=topic: graph.probe.get_subscriptions_info_by_topic(topic), topic)
            for topic in ('/camera/front/image_raw', '/camera/wrist/image_raw')}
        assert {topic: found[0].qos_profile.reliability for topic, found in asked.items()} == {
            '/camera/front/image_raw': ReliabilityPolicy.RELIABLE,
            '/camera/wrist/image_raw': ReliabilityPolicy.BEST_EFFORT}
    finally:
        graph.close()


def test_a_burst_of_old_images_is_not_worked_off(bench: Bench) -> None:
    """Queues that grow make a policy live in the past: only the newest image counts."""
    bench.observe()
    count = len(bench.stream.observed)
    for shade in range(1, 31):  # nobody spins meanwhile
        bench.graph.show('front', pixels=np.full((64, 64, 3), 8 * shade % 256, np.uint8))
        bench.graph.show('wrist')
    newest = np.full((64, 64, 3), 8 * 30 % 256, np.uint8)
    bench.graph.wait_for(lambda: len(bench.stream.observed) > count, 'an observation')
    bench.graph.spin_for(0.2)
    made = bench.stream.observed[count:]
    assert len(made) <= 3
    assert (made[-1].arrays['front'] == newest).all()


def test_a_large_image_reaches_the_model_in_its_size(make_bench: Callable[..., Bench]) -> None:
    """1080p, red on the left and blue on the right."""
    bench = make_bench(**{'cameras.front.reliability': 'reliable', **{
        f'{source}.stale_ms': 60_000 for source in ('cameras.front', 'cameras.wrist', 'joints')}})
    pixels = np.zeros((1080, 1920, 3), np.uint8)
    pixels[:, :960, 0] = pixels[:, 960:, 2] = 200

    def seen() -> bool:
        bench.graph.feel()
        bench.graph.show('wrist')
        bench.graph.show('front', pixels=pixels)
        bench.graph.spin_for(0.1)
        return bool(bench.stream.observed)

    bench.graph.wait_for(seen, 'an observation')
    front = bench.stream.observed[-1].arrays['front']
    assert front.shape == (64, 64, 3) and front.dtype == np.uint8
    assert (front[:, :31] == (200, 0, 0)).all() and (front[:, 33:] == (0, 0, 200)).all()


# -- namespaces ---------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Graph, dict[str, WamNode], dict[str, FakeEngine]]]:
    """Two nodes for the two arms of one robot, each in a namespace."""
    initialise({})
    graph = Graph()
    engines = {arm: FakeEngine() for arm in ('left', 'right')}
    nodes = {}
    for arm, engine in engines.items():
        nodes[arm] = WamNode(lambda _, engine=engine: engine, [
            '--ros-args', '-r', f'__ns:=/{arm}', '-r', f'/joint_states:=/{arm}/joint_states',
            '-r', f'{TRAJECTORIES}:=/{arm}{TRAJECTORIES}'])
        graph.executor.add_node(nodes[arm])
        nodes[arm].trigger_configure()
        nodes[arm].trigger_activate()
    yield graph, nodes, engines
    for node in nodes.values():
        node.close()
        node.destroy_node()
    graph.close()
    rclpy.try_shutdown()


def test_two_nodes_on_one_robot_keep_apart(
        pair: tuple[Graph, dict[str, WamNode], dict[str, FakeEngine]]) -> None:
    graph, nodes, engines = pair
    chunks = {arm: graph.listen(ActionChunk, f'/{arm}/wam_node/action_chunk') for arm in nodes}
    for arm, node in nodes.items():
        graph.discovered(node, [f'/{arm}/wam_node/action_chunk'])
    engines['left'].streams[-1].finish(start=0.1)
    graph.wait_for(lambda: chunks['left'], 'a chunk of the left arm')
    engines['right'].streams[-1].finish(start=0.2)
    graph.wait_for(lambda: chunks['right'], 'a chunk of the right arm')
    assert [chunk.positions[0] for chunk in (*chunks['left'], *chunks['right'])] == [
        pytest.approx(0.1), pytest.approx(0.2)]
    joints = graph.probe.create_publisher(JointState, '/left/joint_states', 10)
    graph.wait_for(joints.get_subscription_count, '/left/joint_states')

    def felt() -> bool:
        message = JointState(name=list(NAMES), position=[0.0] * 6)
        message.header.stamp = graph.now()
        joints.publish(message)
        graph.spin_for(0.02)
        status = graph.diagnostics.get('left/wam_node: sensor joints')
        return status is not None and 'fresh' in status.message

    graph.wait_for(felt, 'the joints of the left arm')
    graph.says('right/wam_node: sensor joints', 'missing')


# -- silence ------------------------------------------------------------------------------------


def test_nothing_is_said_while_inactive_on_any_topic(bench: Bench) -> None:
    chunks, trajectories, reports = heard = bench.listen(
        (ActionChunk, CHUNKS), (JointTrajectory, TRAJECTORIES), (StreamReport, REPORTS))
    bench.node.trigger_deactivate()
    bench.graph.says('wam_node: node', 'inactive')
    bench.graph.spin_for(0.3)  # what was on its way has come
    for topic in heard:
        topic.clear()
    first = bench.stream
    until = time.monotonic() + 1.2  # two reports would have been due
    while time.monotonic() < until:
        bench.graph.sense()
        first.finish(due_in_ms=0.0)
        bench.graph.spin_for(0.05)
    assert not first.observed
    bench.node.trigger_activate()
    bench.stream.finish(start=0.6)  # the sentinels
    bench.graph.wait_for(lambda: chunks and trajectories and reports, 'the sentinels')
    assert chunks[0].epoch == bench.stream.epoch
    assert trajectories[0].points[0].positions[0] == pytest.approx(0.6)
    assert reports[0].epoch == bench.stream.epoch


# -- what is said -------------------------------------------------------------------------------


def test_limits_of_diagnostics_are_parameters(make_bench: Callable[..., Bench]) -> None:
    """Two of three chunks are dropped: a warning, and with another limit an error."""
    patient = {f'{source}.stale_ms': 60_000
               for source in ('cameras.front', 'cameras.wrist', 'joints')}
    bench = make_bench(**patient, **{'warn.dropped_ratio': 0.2, 'error.dropped_ratio': 0.9,
                                     'window_s': 600.0, 'warm_up_chunks': 0})
    for due_in_ms in (-5000.0, -4000.0, 40.0):
        bench.stream.finish(due_in_ms=due_in_ms)
    status = bench.graph.says('wam_node: buffer', 'nothing of it was left to play')
    assert status.level == DiagnosticStatus.WARN
    bench.node.set_parameters([Parameter('error.dropped_ratio', value=0.5)])
    bench.graph.wait_for(
        lambda: bench.graph.diagnostics['wam_node: buffer'].level == DiagnosticStatus.ERROR,
        'an error')
    late = bench.graph.diagnostics['wam_node: deadlines']
    assert late.level == DiagnosticStatus.ERROR and 'would have been enough' in late.message


def test_a_source_that_is_as_slow_as_expected_is_no_error(make_bench: Callable[..., Bench]
                                                          ) -> None:
    bench = make_bench(**{'cameras.front.expected_hz': 0.5, 'cameras.front.stale_ms': 20_000.0,
                          'cameras.wrist.stale_ms': 60_000, 'joints.stale_ms': 60_000})
    bench.observe()
    bench.graph.diagnostics.clear()
    for _ in range(3):
        said = bench.graph.says('wam_node: sensor front', '')
        assert said.level == DiagnosticStatus.OK, said.message
        bench.graph.show('front')
        bench.graph.spin_for(1.1)


def test_a_cold_start_is_not_held_against_what_follows(bench: Bench) -> None:
    """The first chunks are late by seconds; the deadlines of those after them are kept."""
    chunks, reports = bench.listen((ActionChunk, CHUNKS), (StreamReport, REPORTS))
    for count in range(2):
        bench.stream.finish(due_in_ms=-60.0 + count, capture_ns=time.monotonic_ns() - 1500 * MS)
    for count in range(3):
        bench.stream.finish(due_in_ms=1000.0 + 160.0 * count)
    bench.graph.wait_for(lambda: len(chunks) == 5, 'all chunks')
    assert [chunk.on_time for chunk in chunks] == [False, False, True, True, True]
    bench.graph.wait_for(lambda: reports and reports[-1].on_time_ratio == 1.0, 'a clean report')


def test_a_chunk_that_is_short_is_not_filled_up(bench: Bench) -> None:
    """Zeros are a pose like any other: a robot would go there."""
    chunks, trajectories = bench.listen((ActionChunk, CHUNKS), (JointTrajectory, TRAJECTORIES))
    bench.stream.finish(positions=np.full((3, 6), 0.4))
    bench.graph.wait_for(lambda: chunks and trajectories, 'a chunk')
    assert chunks[0].horizon == 3 and len(chunks[0].positions) == 18
    assert all(position == pytest.approx(0.4)
               for point in trajectories[0].points for position in point.positions)
