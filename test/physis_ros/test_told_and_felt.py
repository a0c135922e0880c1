"""Instructions and wrenches: sources like any other, each in the place where the model takes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import WrenchStamped
from node_bench import Bench
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String
from std_srvs.srv import Trigger

WRENCH, INSTRUCTION = '/wrench', '/wam_node/instruction'
MODEL = {'model': 'own_models.told', 'camera_names': "['']", 'wrench.input': 'touch',
         'wrench.topic': WRENCH, 'wrench.stale_ms': 60_000, 'joints.stale_ms': 60_000,
         'instruction.input': 'words'}
PROMPT = {**MODEL, 'model_options': '\'{"prompt": true}\''}


class Told:
    """The bench with a force sensor and somebody who gives instructions."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        probe = bench.graph.probe
        self._wrenches: Publisher = probe.create_publisher(WrenchStamped, WRENCH, 10)
        self._instructions: Publisher = probe.create_publisher(String, INSTRUCTION, QoSProfile(
            depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL))  # fits every subscription
        bench.graph.wait_for(self._wrenches.get_subscription_count, WRENCH)
        bench.graph.wait_for(self._instructions.get_subscription_count, INSTRUCTION)

    def say(self, text: str) -> None:
        self._instructions.publish(String(data=text))

    def touch(self, *, frame: str = 'tool', **force: float) -> None:
        message = WrenchStamped()
        message.header.stamp, message.header.frame_id = self.bench.graph.now(), frame
        for axis, value in force.items():
            setattr(message.wrench.force, axis, value)
        message.wrench.torque.z = -1.5
        self._wrenches.publish(message)

    def observe(self) -> dict[str, Any]:
        """Sense everything until it has reached the engine; what arrived."""
        stream = self.bench.stream
        count = len(stream.observed)

        def seen() -> bool:
            self.bench.graph.feel()
            self.touch(x=2.0)
            self.bench.graph.spin_for(0.02)
            return len(stream.observed) > count

        self.bench.graph.wait_for(seen, 'an observation')
        return dict(stream.observed[-1].arrays)


@pytest.fixture
def tell(make_bench: Callable[..., Bench]) -> Callable[..., Told]:
    def make(**parameters: object) -> Told:
        bench = make_bench(activate=False, **{**MODEL, **parameters})
        bench.node.trigger_configure()
        bench.node.trigger_activate()
        bench.graph.wait_for(lambda: bench.graph.probe.count_subscribers('/joint_states'), 'joints')
        return Told(bench)
    return make


def words(observed: dict[str, Any]) -> str:
    return bytes(observed['words']).rstrip(b'\0').decode()


def test_a_wrench_is_force_then_torque(tell: Callable[..., Told]) -> None:
    told = tell(instruction__text='push')
    assert told.observe()['touch'] == pytest.approx([2.0, 0.0, 0.0, 0.0, 0.0, -1.5])
    assert told.bench.graph.says('wam_node: sensor touch', 'fresh').level == DiagnosticStatus.OK


def test_a_wrench_that_stays_away_is_named(tell: Callable[..., Told]) -> None:
    told = tell(**{'instruction.text': 'push', 'wrench.stale_ms': 300})
    told.observe()
    told.bench.graph.wait_for(lambda: told.bench.stream.paused, 'a pause')
    assert 'touch' in told.bench.graph.says('wam_node: node', 'no fresh input').message
    status = told.bench.graph.says('wam_node: sensor touch', 'stale')
    assert status.level == DiagnosticStatus.ERROR
    told.observe()  # it is back
    told.bench.graph.wait_for(lambda: not told.bench.stream.paused, 'a running stream')


@pytest.mark.parametrize(('touch', 'reason'), [
    ({'y': float('inf')}, 'force.y is inf'),
    ({'frame': 'base'}, 'it is in frame `base`, the model takes `tool`'),
])
def test_a_bad_wrench_is_refused_by_name(
        tell: Callable[..., Told], touch: dict[str, Any], reason: str) -> None:
    told = tell(**{'instruction.text': 'push', 'wrench.frame': 'tool'})
    told.observe()
    told.touch(**touch)
    told.bench.graph.says('wam_node: sensor touch', reason)
    assert told.observe()['touch'] == pytest.approx([2.0, 0.0, 0.0, 0.0, 0.0, -1.5])


def test_an_instruction_holds_until_another_one_is_given(tell: Callable[..., Told]) -> None:
    told = tell()
    bench = told.bench
    bench.graph.says('wam_node: node', 'no instruction yet: publish on /wam_node/instruction '
                     '(std_msgs/String) and no fresh input from joints, touch')
    told.say('pick up the cube')
    assert words(told.observe()) == 'pick up the cube'
    bench.call(Trigger, '/wam_node/reset', Trigger.Request())
    assert words(told.observe()) == 'pick up the cube'
    bench.node.trigger_deactivate()
    bench.node.trigger_activate()
    assert words(told.observe()) == 'pick up the cube'
    assert len(bench.engine.streams) == 2  # as part of the observation it needs no new stream
    told.say('put it down')
    bench.graph.wait_for(lambda: words(told.observe()) == 'put it down', 'the other instruction')
    values = {item.key: item.value
              for item in bench.graph.says('wam_node: sensor words', 'fresh').values}
    bench.graph.wait_for(lambda: 'put it down' in str(
        bench.graph.diagnostics['wam_node: sensor words'].values), 'what is said about it')
    assert 'text' in values
    told.say('')
    bench.graph.wait_for(lambda: bench.stream.paused, 'a pause')


def test_an_instruction_does_not_age_an_observation(tell: Callable[..., Told]) -> None:
    told = tell(instruction__text='push')
    told.observe()
    told.bench.graph.spin_for(0.3)
    told.observe()
    observed = told.bench.stream.observed[-1]
    assert observed.received_ns - observed.capture_ns < (
        observed.received_ns - told.bench.stream.observed[0].received_ns)


def test_an_instruction_that_is_too_long_is_refused_and_the_one_before_kept(
        tell: Callable[..., Told]) -> None:
    told = tell(instruction__text='push')
    told.say('x' * 25)
    told.bench.graph.says('wam_node: sensor words', 'takes 25 bytes, the model takes at most 24')
    (result,) = told.bench.node.set_parameters([
        Parameter('instruction.text', value='ä' * 13)])
    assert not result.successful and '26 bytes' in result.reason
    assert words(told.observe()) == 'push'
    (result,) = told.bench.node.set_parameters([Parameter('instruction.text', value='pull')])
    assert result.successful
    assert words(told.observe()) == 'pull'


def test_an_instruction_from_before_the_node_counts_if_it_is_asked_for(
        make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(activate=False, **MODEL, **{'instruction.durability': 'transient_local'})
    latched = bench.graph.probe.create_publisher(
        String, INSTRUCTION, QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL))
    latched.publish(String(data='sort'))
    bench.node.trigger_configure()
    bench.node.trigger_activate()
    bench.graph.wait_for(latched.get_subscription_count, INSTRUCTION)
    assert words(Told(bench).observe()) == 'sort'


def test_a_prompt_is_given_to_the_stream_and_another_one_begins_a_new_stream(
        tell: Callable[..., Told], capfd: pytest.CaptureFixture[str]) -> None:
    told = tell(**PROMPT)
    bench = told.bench
    bench.graph.feel()
    told.touch()
    untold = 'no instruction yet: publish on /wam_node/instruction (std_msgs/String)'
    assert bench.graph.says('wam_node: node', untold).message == f'paused: {untold}'
    assert bench.graph.says('wam_node: sensor words', untold).level == DiagnosticStatus.ERROR
    log = capfd.readouterr().err
    assert log.count(untold) == 1 and 'no fresh input from words' not in log
    assert not bench.stream.observed  # nothing is made without being told what for
    told.say('pick')
    bench.graph.wait_for(lambda: len(bench.engine.streams) == 2, 'a stream with the prompt')
    assert words(dict(bench.stream.options.prompt)) == 'pick'
    assert set(told.observe()) == {'joints', 'touch'}
    bench.graph.wait_for(lambda: not bench.stream.paused, 'a running stream')
    told.say('pick')  # the same again changes nothing
    told.say('place')
    bench.graph.wait_for(lambda: len(bench.engine.streams) == 3, 'a stream with the new prompt')
    assert words(dict(bench.stream.options.prompt)) == 'place'
    assert 'close' in bench.engine.streams[1].events


def test_a_new_prompt_does_not_lift_a_stop(tell: Callable[..., Told]) -> None:
    told = tell(**PROMPT, **{'instruction.text': 'pick'})
    bench = told.bench
    assert words(dict(bench.stream.options.prompt)) == 'pick'
    bench.call(Trigger, '/wam_node/stop_request', Trigger.Request())
    told.say('place')
    bench.graph.wait_for(lambda: 'place' in str(
        bench.graph.diagnostics.get('wam_node: sensor words', '')), 'the instruction')
    bench.graph.says('wam_node: node', 'stop requested')
    assert len(bench.engine.streams) == 1 and bench.stream.paused
    assert bench.call(Trigger, '/wam_node/reset', Trigger.Request()).success
    assert words(dict(bench.stream.options.prompt)) == 'place'


@pytest.mark.parametrize('as_prompt', [False, True])
def test_what_was_felt_and_told_is_recorded_and_can_be_replayed(
        tell: Callable[..., Told], tmp_path: Path, as_prompt: bool) -> None:
    pytest.importorskip('rosbags', reason='rosbags is not installed')
    from physis_ros.replay.bag import Bag
    from physis_ros.replay.player import Player

    told = tell(**(PROMPT if as_prompt else {}), record=tmp_path, **{
        'instruction.text': 'push', 'wrench.frame': 'tool'})
    bench = told.bench

    def current() -> str:
        arrays = bench.stream.options.prompt if as_prompt else bench.stream.observed[-1].arrays
        return words(dict(arrays))

    told.observe()
    told.say('pull')
    bench.graph.wait_for(lambda: 'pull' in str(
        bench.graph.diagnostics.get('wam_node: sensor words', '')), 'the new instruction')
    told.observe()
    assert current() == 'pull' and len(bench.engine.streams) == (2 if as_prompt else 1)
    bench.node.trigger_deactivate()
    (session,) = tmp_path.iterdir()
    with closing(Bag(session / 'observations', {})) as bag:
        assert bag.topics().keys() == {WRENCH, INSTRUCTION, '/joint_states'}
        messages = list(bag.messages())
    texts = [recorded.message.data for recorded in messages if recorded.topic == INSTRUCTION]
    assert texts == ['push', 'pull']
    assert messages[0].topic == INSTRUCTION  # before the first observation that was made under it
    wrench = next(recorded.message for recorded in messages if recorded.topic == WRENCH)
    assert (wrench.header.frame_id, wrench.wrench.force.x, wrench.wrench.torque.z) == (
        'tool', 2.0, -1.5)
    assert wrench.header.stamp.sec > 0

    bench.node.set_parameters([Parameter('record', value=''),
                               Parameter('instruction.text', value='')])
    bench.node.trigger_activate()
    with closing(Bag(session / 'observations', {})) as bag:
        player = Player(bag, rate=1.0)
        bench.graph.executor.add_node(player)
        bench.graph.wait_for(lambda: not player.unheard(), 'the policy to listen')
        player.play(bench.graph.spin_for, lambda share: None)
        bench.graph.wait_for(lambda: bench.stream.observed and current() == 'pull', 'both texts')
        player.destroy_node()
    assert bench.stream.observed[-1].arrays['touch'] == pytest.approx([2, 0, 0, 0, 0, -1.5])


@pytest.mark.parametrize(('parameters', 'sentence'), [
    ({'model': 'so101', 'camera_names': '[front, wrist]'},
     'model `so101` has no input `touch`; its inputs are'),
    ({'model': 'so101', 'camera_names': '[front, wrist]', 'wrench.input': "''"},
     'model `so101` has no input `words`; correct `instruction.input`'),
    ({'wrench.input': "''"}, 'needs input `touch`, and no source is named so'),
    ({'instruction.input': "''"}, 'needs input `words`, and no source is named so'),
    ({**PROMPT, 'instruction.input': "''"}, 'needs input `words`, and no source is named so'),
    ({'instruction.input': 'touch'}, 'input `touch` of model `own_models.told` has two sources'),
    ({'model_options': '\'{"text_type": "float32"}\''}, 'is float32 [24], an instruction is text'),
    ({'wrench.input': 'words', 'instruction.input': 'touch'}, 'is uint8; its source gives float32'),
    ({'instruction.text': 'x' * 30}, 'takes 30 bytes, the model takes at most 24'),
])
def test_a_source_that_the_model_does_not_take_stops_the_configuration_with_a_sentence(
        make_bench: Callable[..., Bench], capfd: pytest.CaptureFixture[str],
        parameters: dict[str, object], sentence: str) -> None:
    bench = make_bench(activate=False, **{**MODEL, **parameters})
    bench.node.trigger_configure()
    assert bench.node._state_machine.current_state[1] == 'unconfigured'
    assert sentence in capfd.readouterr().err
