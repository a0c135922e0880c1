"""What other stacks got wrong at the node, done right here; on a real graph."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeStream
from graph import NAMES

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from diagnostic_msgs.msg import DiagnosticStatus
from node_bench import Bench
from rclpy.parameter import Parameter
from rclpy.time import Time
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.delivery.ring import ServoFeedback, ServoState
from physis_core.errors import InputError, WorkerLost
from physis_core.observability.percentiles import Summary
from physis_ros.diagnostics import statuses
from physis_ros.ingest.joint_states import JointCollector
from physis_ros.msg import ActionChunk, StreamReport
from physis_ros.wam_node import WamNode

CHUNKS = '/wam_node/action_chunk'
TRAJECTORIES = '/arm_controller/joint_trajectory'
REPORTS = '/wam_node/stream_report'


# -- observations -------------------------------------------------------------------------------


def test_the_first_observation_is_not_filtered_out(bench: Bench) -> None:
    bench.graph.sense()
    bench.graph.wait_for(lambda: bench.stream.observed, 'the first observation')
    first = bench.stream.observed[0]
    assert set(first.arrays) == {'front', 'wrist', 'joints'}
    assert first.capture_ns <= first.received_ns


def test_joints_are_mapped_by_name(bench: Bench) -> None:
    """Another order, in two messages, among joints of somebody else."""
    positions = {name: 0.1 * index for index, name in enumerate(NAMES)}
    reverse = dict(reversed(positions.items()))
    bench.graph.feel({'other': 9.0, **{name: reverse[name] for name in list(reverse)[:3]}})
    bench.graph.feel({**{name: reverse[name] for name in list(reverse)[3:]}, 'wheel': 7.0})
    bench.graph.show('front')
    bench.graph.show('wrist')
    bench.graph.wait_for(lambda: bench.stream.observed, 'an observation')
    assert bench.stream.observed[-1].arrays['joints'] == pytest.approx(
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_the_capture_time_is_that_of_the_oldest_input(bench: Bench) -> None:
    now = Time.from_msg(bench.graph.now()).nanoseconds
    bench.graph.feel(stamp=Time(nanoseconds=now - 20_000_000).to_msg())
    bench.graph.show('front', stamp=Time(nanoseconds=now - 80_000_000).to_msg())
    bench.graph.show('wrist', stamp=Time(nanoseconds=now - 40_000_000).to_msg())
    bench.graph.wait_for(lambda: bench.stream.observed, 'an observation')
    observed = bench.stream.observed[0]
    assert (observed.received_ns - observed.capture_ns) / 1e6 >= 80.0


def test_a_camera_that_stopped_is_named_and_nothing_is_made_from_it(
        make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(cameras__front__stale_ms=1000, cameras__wrist__stale_ms=60_000,
                       joints__stale_ms=60_000)
    bench.observe()
    bench.graph.wait_for(lambda: not bench.stream.paused, 'a running stream')

    def starve() -> bool:
        bench.graph.feel()
        bench.graph.show('wrist')
        return bench.stream.paused

    bench.graph.wait_for(starve, 'a pause')
    status = bench.graph.says('wam_node: sensor front', 'stale')
    assert status.level == DiagnosticStatus.ERROR
    assert 'front' in bench.graph.says('wam_node: node', 'no fresh input').message
    count = len(bench.stream.observed)
    bench.observe()  # it is back
    bench.graph.wait_for(lambda: not bench.stream.paused, 'a running stream')
    assert len(bench.stream.observed) > count


def test_a_slow_camera_does_not_hold_back_a_fast_one(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(**{f'{source}.stale_ms': 60_000
                          for source in ('cameras.front', 'cameras.wrist', 'joints')})
    bench.observe()
    count = len(bench.stream.observed)

    def show() -> bool:
        bench.graph.feel()
        bench.graph.show('wrist')
        return len(bench.stream.observed) > count + 2

    bench.graph.wait_for(show, 'observations without the front camera')


def test_a_frozen_camera_is_named(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(cameras__front__frozen_ms=300.0, cameras__front__stale_ms=60_000,
                       cameras__wrist__stale_ms=60_000)
    same = np.full((64, 64, 3), 7, np.uint8)

    def show() -> bool:
        bench.graph.feel()
        bench.graph.show('front', pixels=same)
        bench.graph.show('wrist')
        status = bench.graph.diagnostics.get('wam_node: sensor front')
        return status is not None and 'frozen' in status.message

    bench.graph.wait_for(show, 'the frozen camera to be named')
    assert bench.graph.diagnostics['wam_node: sensor wrist'].message == 'fresh'


@pytest.mark.parametrize('position', [float('nan'), float('-inf'), 1e300])
def test_a_joint_that_is_not_finite_is_refused_by_name(bench: Bench, position: float) -> None:
    bench.observe()
    count = len(bench.stream.observed)
    bench.graph.feel({**dict.fromkeys(NAMES, 0.5), 'elbow_flex': position})
    bench.graph.wait_for(
        lambda: 'elbow_flex' in bench.graph.diagnostics.get(
            'wam_node: sensor joints', DiagnosticStatus()).message, 'the refusal')
    bench.observe()  # the sentinel: joints are again as before
    for observed in bench.stream.observed[count:]:
        assert observed.arrays['joints'] == pytest.approx(0.0)


def test_joints_of_other_names_are_said_to_be_so(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(joints__names='[j1, j2, j3, j4, elbow_flex, gripper]')

    def said() -> str:
        bench.graph.feel()
        bench.graph.spin_for(0.02)
        status = bench.graph.diagnostics.get('wam_node: sensor joints')
        return status.message if status and 'arrives' in status.message else ''

    message = bench.graph.wait_for(said, 'the names')
    assert message == (
        '/joint_states arrives, but never names j1, j2, j3, j4; it names elbow_flex, gripper, '
        'shoulder_pan, shoulder_lift, wrist_flex, wrist_roll; correct `joints.names`')
    assert bench.graph.diagnostics['wam_node: sensor front'].message == (
        'missing: nothing has been received')


def test_of_many_foreign_joints_a_few_are_named() -> None:
    joints = JointCollector(('j1',))
    assert joints.absence('/joints') == ''
    for number in range(100):
        joints.take(JointState(name=[f'wheel_{number}'], position=[0.0]), 1)
    said = joints.absence('/joints')
    assert 'wheel_7, ...' in said and 'wheel_8' not in said
    joints.take(JointState(name=['j1'], position=[0.0]), 2)
    assert joints.absence('/joints') == ''


def test_while_the_engine_takes_no_observation_nothing_is_made_from_the_one_before(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.observe()
    stream = bench.stream

    def refuse(observation: object, capture_ns: int) -> int:
        raise InputError('observation `prefix` holds NaN')

    with monkeypatch.context() as patch:
        patch.setattr(stream, 'observe', refuse)

        def said() -> bool:
            bench.graph.sense()
            bench.graph.spin_for(0.02)
            status = bench.graph.diagnostics.get('wam_node: node')
            return status is not None and '`prefix` holds NaN' in status.message

        bench.graph.wait_for(said, 'the refusal')
        assert stream.paused
        assert 'refused' not in bench.graph.diagnostics['wam_node: sensor front'].message
    bench.observe()
    assert not stream.paused


def test_an_image_from_the_future_is_refused(bench: Bench) -> None:
    bench.graph.feel()
    future = Time(nanoseconds=Time.from_msg(bench.graph.now()).nanoseconds + 10**10).to_msg()
    bench.graph.show('front', stamp=future)
    bench.graph.wait_for(
        lambda: 'future' in bench.graph.diagnostics.get(
            'wam_node: sensor front', DiagnosticStatus()).message, 'the refusal')
    assert not bench.stream.observed


# -- chunks -------------------------------------------------------------------------------------


def test_a_chunk_says_everything_about_itself(bench: Bench) -> None:
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    finished = bench.stream.finish(due_in_ms=40.0, start=0.5, speed=2.0)
    (chunk,) = bench.graph.wait_for(lambda: heard, 'a chunk')
    assert (chunk.stream_id, chunk.epoch, chunk.chunk_id, chunk.horizon) == ('so101', 1, 0, 8)
    assert list(chunk.joint_names) == list(NAMES)
    positions = np.array(chunk.positions).reshape(8, 6)
    assert positions == pytest.approx(finished.outputs['positions'])
    assert np.array(chunk.velocities) == pytest.approx(2.0, abs=1e-4)
    stamp = Time.from_msg(chunk.header.stamp).nanoseconds
    assert Time.from_msg(chunk.valid_until).nanoseconds - stamp == 8 * 20_000_000
    parts = (chunk.age_capture_s + chunk.age_queue_s + chunk.age_response_s
             + chunk.age_handoff_s)
    age_s = (stamp - Time.from_msg(chunk.capture_stamp).nanoseconds) * 1e-9
    assert parts == pytest.approx(age_s, abs=1e-6)
    assert age_s == pytest.approx((finished.due_ns - finished.capture_ns) * 1e-9, abs=1e-6)
    assert chunk.on_time


def test_a_trajectory_starts_at_the_planned_time_and_increases_strictly(bench: Bench) -> None:
    trajectories, chunks = bench.listen((JointTrajectory, TRAJECTORIES), (ActionChunk, CHUNKS))
    bench.stream.finish(due_in_ms=60.0, speed=2.0)
    (trajectory,) = bench.graph.wait_for(lambda: trajectories, 'a trajectory')
    assert trajectory.header.stamp == chunks[0].header.stamp
    assert list(trajectory.joint_names) == list(NAMES)
    times = [point.time_from_start.sec + point.time_from_start.nanosec * 1e-9
             for point in trajectory.points]
    assert times == pytest.approx([0.02 * (point + 1) for point in range(len(times))])
    assert all(np.array(point.velocities) == pytest.approx(2.0, abs=1e-4)
               for point in trajectory.points[:8])  # then comes the way to rest


def test_chunks_follow_one_another_without_gaps(bench: Bench) -> None:
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    for count in range(20):
        bench.stream.finish(start=0.01 * count, due_in_ms=1500.0)
        bench.graph.wait_for(lambda count=count: len(heard) > count, f'chunk {count}')
    assert [chunk.chunk_id for chunk in heard] == list(range(20))


def test_a_chunk_that_is_not_finite_is_refused_and_latched(bench: Bench) -> None:
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    bad = np.zeros((8, 6))
    bad[3, 2] = np.nan
    bench.stream.finish(positions=bad)
    status = bench.graph.says('wam_node: node', 'stopped')
    assert 'control point 3 of joint 2' in status.message
    assert status.level == DiagnosticStatus.ERROR
    assert bench.call(Trigger, '/wam_node/reset', Trigger.Request()).success
    bench.stream.finish()  # the sentinel
    bench.graph.wait_for(lambda: heard, 'a chunk')
    assert [chunk.epoch for chunk in heard] == [2]


def test_a_late_chunk_is_delivered_and_counted(bench: Bench) -> None:
    chunks, reports = bench.listen((ActionChunk, CHUNKS), (StreamReport, REPORTS))
    bench.stream.finish(due_in_ms=-50.0)
    bench.stream.finish(due_in_ms=-500.0)  # nothing of it is left to play
    bench.stream.finish(due_in_ms=50.0)
    bench.graph.wait_for(lambda: len(chunks) == 2, 'two of three chunks')
    assert [(chunk.chunk_id, chunk.on_time) for chunk in chunks] == [(0, False), (2, True)]
    bench.graph.wait_for(lambda: reports and reports[-1].chunks_delivered == 2, 'a report')
    assert (reports[-1].deadline_misses, reports[-1].chunks_dropped) == (2, 1)


def test_a_model_is_told_what_was_promised(make_bench: Callable[..., Bench]) -> None:
    """Real-time chunking: the committed prefix is an input like any other."""
    bench = make_bench(
        activate=False, model='own_models.prefix', camera_names="['']", handover__strategy='prefix',
        lead_ms=20.0, period_ms=100.0)
    bench.node.trigger_configure()
    bench.node.trigger_activate()
    (heard,) = bench.listen((ActionChunk, CHUNKS))

    def told() -> np.ndarray:
        count = len(bench.stream.observed)

        def seen() -> bool:
            bench.graph.feel(dict.fromkeys(NAMES, 0.25))
            return len(bench.stream.observed) > count

        bench.graph.wait_for(seen, 'an observation')
        return bench.stream.observed[-1].arrays['prefix']

    assert told() == pytest.approx(0.25)  # nothing was promised: it stays where it is
    bench.stream.finish(due_in_ms=50.0, start=1.0, speed=1.0)
    bench.graph.wait_for(lambda: heard, 'a chunk')
    # The next chunk is due 100 ms after this one: its points 5 and 6 are the promise.
    assert told() == pytest.approx(np.repeat([[1.10], [1.12]], 6, 1), abs=1e-3)
    bench.stream.finish(due_in_ms=100.0, start=5.0, speed=0.0)
    bench.graph.wait_for(lambda: len(heard) == 2, 'the next chunk')
    positions = np.array(heard[1].positions).reshape(8, 6)
    assert positions[:2].max() < 1.5  # the promise is kept
    assert positions[2:] == pytest.approx(5.0)


# -- reset, pause, stop -------------------------------------------------------------------------


def test_nothing_of_an_old_epoch_comes_after_a_reset(bench: Bench) -> None:
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    bench.stream.finish()
    bench.graph.wait_for(lambda: heard, 'a chunk')
    answer = bench.call(Trigger, '/wam_node/reset', Trigger.Request())
    assert answer.success and answer.message == 'epoch 2'
    for _ in range(3):
        bench.stream.finish(epoch=1)  # was in flight
    bench.stream.finish(start=0.7)  # the sentinel
    bench.graph.wait_for(lambda: heard[-1].epoch == 2, 'a chunk of the new epoch')
    assert [chunk.epoch for chunk in heard] == [1, 2]


def test_a_reset_forgets_what_was_seen(bench: Bench) -> None:
    bench.observe()
    bench.call(Trigger, '/wam_node/reset', Trigger.Request())
    count = len(bench.stream.observed)
    bench.graph.show('front')
    bench.graph.show('front')  # the joints and the other camera are of before
    bench.graph.says('wam_node: sensor wrist', 'missing')
    assert len(bench.stream.observed) == count


def test_a_stop_first_stops_the_producer_and_lets_nothing_overtake_it(
        bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    chunks, trajectories = bench.listen((ActionChunk, CHUNKS), (JointTrajectory, TRAJECTORIES))
    stream: FakeStream = bench.stream
    assert bench.call(Trigger, '/wam_node/stop_request', Trigger.Request()).success
    assert stream.events[-1] == 'pause' and stream.paused
    stream.finish()  # was in flight when the stop came
    stream.finish()
    bench.graph.says('wam_node: node', 'stop requested')
    answer = bench.call(SetBool, '/wam_node/pause', SetBool.Request(data=False))
    assert not answer.success and stream.paused  # only a reset lifts it
    assert answer.message == 'stopped: stop requested; call ~/reset to go on'
    log = capfd.readouterr().err
    assert log.count('stopped: stop requested') == 1
    assert not [line for line in log.splitlines() if line.startswith('[ERROR]')]
    bench.call(Trigger, '/wam_node/reset', Trigger.Request())
    stream.finish()  # the sentinel
    bench.graph.wait_for(lambda: chunks, 'a chunk')
    assert [chunk.epoch for chunk in chunks] == [2]
    assert all(list(trajectory.joint_names) == list(NAMES) for trajectory in trajectories)


def test_the_last_thing_a_controller_hears_is_the_way_to_rest(bench: Bench) -> None:
    (trajectories,) = bench.listen((JointTrajectory, TRAJECTORIES))
    stop = bench.service(Trigger, '/wam_node/stop_request')
    for count in range(12):  # one after the other; most of them wait for their time
        last = bench.stream.finish(due_in_ms=10.0 + 160.0 * count, speed=1.0)
    bench.graph.wait_for(lambda: trajectories, 'a trajectory')
    assert stop(Trigger.Request()).success
    bench.graph.wait_for(lambda: not trajectories[-1].header.stamp.sec, 'the way to rest')
    bench.graph.wait_for(lambda: time.monotonic_ns() > last.due_ns, 'their time to pass')
    bench.call(Trigger, '/wam_node/reset', Trigger.Request())
    bench.stream.finish(start=0.5)  # the sentinel
    bench.graph.wait_for(lambda: trajectories[-1].header.stamp.sec, 'one of the new epoch')
    rest, sentinel = trajectories[-2:]
    assert sentinel.points[0].positions[0] == pytest.approx(0.5)
    assert (rest.header.stamp.sec, rest.header.stamp.nanosec) == (0, 0)
    assert rest.points[0].time_from_start.nanosec == 20_000_000
    assert not any(rest.points[-1].velocities)
    assert 0.0 < rest.points[-1].positions[0] < 0.3


def test_a_pause_stops_the_source_and_is_said(bench: Bench) -> None:
    bench.observe()
    bench.graph.wait_for(lambda: not bench.stream.paused, 'a running stream')
    bench.call(SetBool, '/wam_node/pause', SetBool.Request(data=True))
    assert bench.stream.paused
    bench.graph.says('wam_node: node', 'by ~/pause')


def test_a_lost_worker_is_latched_until_a_reset_opens_a_new_stream(bench: Bench) -> None:
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    lost = bench.stream
    lost.fail(WorkerLost('host process 1 (pid 7) is gone'))
    assert 'host process 1' in bench.graph.says('wam_node: node', 'stopped').message
    assert bench.call(Trigger, '/wam_node/reset', Trigger.Request()).success
    assert bench.stream is not lost
    bench.stream.finish()
    bench.graph.wait_for(lambda: heard, 'a chunk')
    assert heard[0].epoch == bench.stream.epoch > lost.epoch


# -- life ---------------------------------------------------------------------------------------


def test_nothing_is_published_while_inactive(bench: Bench) -> None:
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    first = bench.stream
    bench.node.trigger_deactivate()
    assert first.events[-1] == 'close'
    bench.graph.sense()
    bench.graph.says('wam_node: node', 'inactive')
    assert not first.observed
    bench.node.trigger_activate()
    bench.stream.finish()  # the sentinel
    bench.graph.wait_for(lambda: heard, 'a chunk')
    assert [chunk.epoch for chunk in heard] == [bench.stream.epoch]


def test_a_cleanup_lets_go_of_engine_and_ring_and_can_be_undone(bench: Bench) -> None:
    bench.node.trigger_deactivate()
    bench.node.trigger_cleanup()
    assert bench.engine.closed
    bench.node.trigger_configure()
    bench.node.trigger_activate()
    (heard,) = bench.listen((ActionChunk, CHUNKS))
    bench.stream.finish()
    bench.graph.wait_for(lambda: heard, 'a chunk')


@pytest.mark.parametrize(('parameter', 'value', 'sentence'), [
    ('period_ms', -5.0, 'parameter `period_ms` is -5.0; it must be between 1.0 and 60000.0'),
    ('plan_mode', 'fastest', 'parameter `plan_mode` is `fastest`; choose one of sequential'),
    ('workers', 2.5, 'parameter `workers` is 2.5; it must be of type int'),
    ('camera_names', '[front, side]', 'has no input `side`'),
    ('camera_names', '[front]', 'needs input `wrist`'),
    ('joints__names', '[a, b]', 'has 2 names'),
    ('model', 'gpt', 'model `gpt` is not known'),
    ('model_options', '"{"', 'not JSON'),
    ('plan_file', '/nowhere.json', 'cannot be read'),
    ('perod_ms', 50.0, 'parameter `perod_ms` is not known to wam_node; the closest that is known '
     'is `period_ms`'),
    ('leed_ms', 777.0, 'the closest that is known is `lead_ms`'),
    ('cameras__front__stale', 5.0, 'the closest that is known is `cameras.front.stale_ms`'),
    ('cameras__frnt__stale_ms', 5.0, '`camera_names` does not name a camera `frnt`'),
    ('joints__names', '[y, y, y, y, y, y]', "write 'y' for the word"),
])
def test_a_wrong_parameter_stops_the_configuration_with_a_sentence(
        make_bench: Callable[..., Bench], capfd: pytest.CaptureFixture[str], parameter: str,
        value: object, sentence: str) -> None:
    bench = make_bench(activate=False, **{parameter: value})
    bench.node.trigger_configure()
    assert bench.node._state_machine.current_state[1] == 'unconfigured'
    assert sentence in capfd.readouterr().err


def test_more_workers_than_work_or_cpus_are_said(
        make_bench: Callable[..., Bench], capfd: pytest.CaptureFixture[str]) -> None:
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        make_bench(workers=40)
    finally:
        os.sched_setaffinity(0, cpus)
    said = capfd.readouterr().err
    assert ('`workers` is 40: plan `full_split` of the 32 stages has work for 32, so no more are '
            'started') in said
    assert '32 worker processes share 1 CPUs' in said and 'set `workers` to at most 1' in said


def test_workers_that_fit_are_not_spoken_of(
        make_bench: Callable[..., Bench], capfd: pytest.CaptureFixture[str]) -> None:
    make_bench(workers=1)
    said = capfd.readouterr().err
    assert '`workers`' not in said and 'worker processes' not in said


def test_parameters_of_rclpy_are_known(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(use_sim_time=False, start_type_description_service=False, **{
        'qos_overrides.joints.depth': 100})
    assert bench.node._state_machine.current_state[1] == 'active'


def test_a_whole_number_is_a_number(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(period_ms=200)
    assert bench.stream.options.period_ns == 200_000_000


def test_a_bad_change_of_a_parameter_is_refused(bench: Bench) -> None:
    (result,) = bench.node.set_parameters([Parameter('lead_ms', value=-1.0)])
    assert not result.successful and 'between 0.0' in result.reason


@pytest.mark.parametrize(('name', 'value', 'until'), [
    ('warn.age_ms', 300.0, 'active'), ('lead_ms', 200.0, 'inactive'), ('record', '', 'active'),
    ('handover.strategy', 'blend', 'inactive'), ('period_ms', 80.0, 'unconfigured'),
    ('cameras.front.stale_ms', 1000.0, 'unconfigured'),
])
def test_a_change_that_would_not_count_is_refused(
        make_bench: Callable[..., Bench], name: str, value: object, until: str) -> None:
    """Or diagnostics would speak of a lead, or of limits, that nothing keeps to."""
    node = make_bench(activate=False).node  # what it is told comes from nobody else
    node.trigger_configure()
    node.trigger_activate()
    states = ('active', 'inactive', 'unconfigured')
    for state, leave in zip(states, (node.trigger_deactivate, node.trigger_cleanup,
                                     lambda: None), strict=True):
        assert node._state_machine.current_state[1] == state
        (result,) = node.set_parameters([Parameter(name, value=value)])
        assert result.successful == (states.index(state) >= states.index(until)), result.reason
        if not result.successful:
            assert f'parameter `{name}` counts from' in result.reason
            assert 'deactivate the node' in result.reason
        leave()
    assert node.get_parameter(name).value == value


# -- what is said about it ----------------------------------------------------------------------


def test_the_four_frequencies_are_four(bench: Bench) -> None:
    """Chunks come twice as often as new observations reach them; there is no servo."""
    (reports,) = bench.listen((StreamReport, REPORTS))
    counts = itertools.count()
    capture_ns: list[int] = []

    def deliver() -> bool:
        count = next(counts)
        bench.graph.sense()
        if count % 2 == 0:
            capture_ns.append(time.monotonic_ns() - 60_000_000)
        bench.stream.finish(capture_ns=capture_ns[-1])
        bench.graph.spin_for(0.05)
        return count > 30 and bool(reports) and reports[-1].chunk_hz > 0

    bench.graph.wait_for(deliver, 'a report')
    report = reports[-1]
    assert list(report.sensor_names) == ['front', 'wrist', 'joints']
    assert all(hz > 0 for hz in report.sensor_hz)
    assert report.replan_hz < 0.75 * report.chunk_hz
    assert np.isnan(report.servo_hz)


def test_without_cameras_replanning_is_zero_within_two_seconds(bench: Bench) -> None:
    (reports,) = bench.listen((StreamReport, REPORTS))

    def run() -> bool:
        bench.graph.sense()
        bench.stream.finish(capture_ns=time.monotonic_ns() - 50_000_000)
        bench.graph.spin_for(0.05)
        return bool(reports) and reports[-1].replan_hz > 0

    bench.graph.wait_for(run, 'replanning')
    before = len(reports)
    bench.graph.wait_for(lambda: reports[-1].replan_hz == 0.0, 'no replanning')
    rates = [report.replan_hz for report in reports[before:]]
    assert rates.index(0.0) < 2  # reports come once a second
    assert reports[-1].sensor_hz[0] == 0.0


def test_diagnostics_come_at_one_hertz_without_a_ros_clock(make_bench: Callable[..., Bench]
                                                           ) -> None:
    """Simulated time that never starts freezes stamps, not diagnostics."""
    bench = make_bench(use_sim_time=True)
    for _ in range(2):
        bench.graph.diagnostics.clear()
        bench.graph.says('wam_node: node', 'paused')


def test_every_subject_of_the_diagnostics_is_there(bench: Bench) -> None:
    bench.graph.says('wam_node: node', '')
    assert set(bench.graph.diagnostics) == {
        f'wam_node: {what}' for what in (
            'node', 'sensor front', 'sensor wrist', 'sensor joints', 'replan', 'chunk', 'servo',
            'action age', 'deadlines', 'buffer', 'pipeline', 'stages', 'devices')}


@pytest.mark.parametrize(('topic', 'level', 'text'), [
    (TRAJECTORIES, DiagnosticStatus.OK, f'not in use: chunks go to {TRAJECTORIES}'),
    ("''", DiagnosticStatus.ERROR, 'no servo is playing'),
])
def test_a_servo_that_nobody_needs_is_no_error(
        make_bench: Callable[..., Bench], topic: str, level: bytes, text: str) -> None:
    bench = make_bench(trajectory__topic=topic)
    assert bench.graph.says('wam_node: servo', text).level == level


def test_a_servo_that_played_and_is_gone_is_an_error(bench: Bench) -> None:
    status = bench.node._status()
    assert status is not None
    unknown = np.full(len(NAMES), np.nan)
    status = replace(status, feedback=ServoFeedback(
        effects=0, tick_ns=status.now_ns - 2_000_000_000, state=ServoState.PLAYING, epoch=1,
        real_time=False, ticks=1, played=1, missed=0, underruns=0, limited=0, rate_hz=250.0,
        position=unknown, velocity=unknown))
    (servo,) = [found for found in statuses(
        'wam_node', 'active', '', status, bench.node._thresholds(), TRAJECTORIES)
        if found.name == 'wam_node: servo']
    assert servo.level == DiagnosticStatus.ERROR and 'no servo is playing' in servo.message


@pytest.mark.parametrize(('late_s', 'hint'), [
    ((0.0, 0.0002, 0.0004), '; a lead of 101 ms would have been enough (lead_ms is 100)'),
    ((0.01, 0.05, 0.0815), '; a lead of 182 ms would have been enough (lead_ms is 100)'),
    ((-0.02, -0.001, -0.0001), ''),
])
def test_the_lead_that_is_hinted_at_would_have_kept_every_deadline_of_the_window(
        bench: Bench, late_s: tuple[float, float, float], hint: str) -> None:
    status = bench.node._status()
    assert status is not None
    status = replace(status, numbers=replace(
        status.numbers, on_time_ratio=0.97, response_lateness_s=Summary(0.0, *late_s)))
    (deadlines,) = [found for found in statuses(
        'wam_node', 'active', '', status, bench.node._thresholds())
        if found.name == 'wam_node: deadlines']
    assert deadlines.message == f'97% on time{hint}'


def test_the_log_says_what_runs(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.node.trigger_deactivate()
    bench.node.trigger_activate()
    assert ('active: model `so101`, plan `full_split` on 2 workers (cpu), a chunk every 160 ms, '
            'lead 100 ms') in capfd.readouterr().err


def test_two_nodes_on_one_robot_do_not_share_a_ring(bench: Bench) -> None:
    second = WamNode(lambda _: FakeEngine())
    second.trigger_configure()
    assert second._state_machine.current_state[1] == 'unconfigured'  # the ring's name is taken
    second.destroy_node()
