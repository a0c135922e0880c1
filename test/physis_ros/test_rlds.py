"""Published episodes become a recording that the policy can be fed with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')
pytest.importorskip('rosbags', reason='rosbags is not installed')

from node_bench import Bench

from physis_core.cli.commands import execute
from physis_core.errors import InputError
from physis_ros.replay import convert_command
from physis_ros.replay.bag import Bag
from physis_ros.replay.player import Player
from physis_ros.replay.rlds import episodes

STATE = 'steps/observation/state'
AXES = ('x', 'y', 'z', 'roll', 'pitch', 'yaw', 'gripper')
JPEG, PNG = b'\xff\xd8 one', b'\x89PNG two'


def field(number: int, content: bytes) -> bytes:
    """A field of bytes of a protobuf message; its length takes two bytes."""
    return bytes((number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7)) + content


def feature(name: str, kind: int, content: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, field(kind, content)))


def record(images: list[bytes], state: list[float], *others: bytes) -> bytes:
    """One TFRecord of an episode."""
    example = field(1, b''.join((
        feature('steps/observation/cam', 1, b''.join(field(1, image) for image in images)),
        feature(STATE, 2, field(1, struct.pack(f'<{len(state)}f', *state))), *others)))
    return struct.pack('<QI', len(example), 0) + example + bytes(4)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Two episodes of two steps, one camera, three values."""
    is_first = feature('steps/is_first', 3, field(1, b'\x01\x00'))
    path = tmp_path / 'shard.tfrecord'
    path.write_bytes(record([JPEG, PNG], [0, 1, 2, 3, 4, 5], is_first)
                     + record([JPEG, JPEG], [6, 7, 8, 9, 10, 11], is_first))
    return path


@pytest.fixture
def bridge(repository: Path) -> Path:
    """Real episodes of a WidowX arm."""
    path = repository.parent / 'shared' / 'data' / 'bridge_sample.tfrecord'
    if not path.is_file():
        pytest.skip(f'{path} is not there: it has real camera images')
    return path


def convert(*arguments: object) -> int:
    return execute(convert_command, 'physis convert', [str(argument) for argument in arguments])


def test_episodes_are_read(shard: Path) -> None:
    first, second = episodes(shard, STATE)
    assert first.images == {'cam': (JPEG, PNG)}
    assert first.states.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.states[1].tolist() == [9, 10, 11]


def test_images_and_states_are_recorded_at_the_pace_of_the_data_set(
        shard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(shard, '--out', tmp_path / 'bag', '--hz', '10') == 0
    assert '2 episodes, 4 steps, 0.4 s' in capsys.readouterr().out
    with closing(Bag(tmp_path / 'bag', {})) as bag:
        assert bag.expected() == {'/camera/cam/image_raw/compressed': 4, '/joint_states': 4}
        messages = list(bag.messages())
    times_ns = sorted({recorded.time_ns for recorded in messages})
    assert np.diff(times_ns).tolist() == [100_000_000] * 3
    images = [recorded.message for recorded in messages if 'camera' in recorded.topic]
    assert [(image.format, bytes(image.data)) for image in images[:2]] == [
        ('jpeg', JPEG), ('png', PNG)]
    joints = [recorded.message for recorded in messages if 'joint' in recorded.topic]
    assert list(joints[3].name) == ['state_0', 'state_1', 'state_2']
    assert joints[3].position.tolist() == [9, 10, 11]


@pytest.mark.parametrize(('options', 'complaint'), [
    (('--hz', '0'), '--hz is 0; it must be positive'),
    (('--episodes', '0'), '--episodes is 0; it goes from 1 to'),
    (('--joints', 'a', 'b'), '--joints names 2 values, the state has 3'),
    (('--state', 'elsewhere'), 'has no feature elsewhere; it has steps/observation/state'),
])
def test_wrong_options_are_refused(shard: Path, tmp_path: Path, options: tuple[str, ...],
                                   complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        convert(shard, '--out', tmp_path / 'bag', *options)
    assert not (tmp_path / 'bag').exists()


@pytest.mark.parametrize('content', [
    b'no record at all, but long enough', record([JPEG], [0.0])[:-5], b'abc'])
def test_what_is_no_tfrecord_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / 'file').write_bytes(content)
    with pytest.raises(InputError, match='no TFRecord file, or its end is missing'):
        list(episodes(tmp_path / 'file', STATE))


@pytest.mark.parametrize('example', [b'\xff' * 40, b'\x0b\x00', field(1, b'\x0a\x7f')])
def test_what_is_no_example_is_refused(tmp_path: Path, example: bytes) -> None:
    (tmp_path / 'file').write_bytes(
        struct.pack('<QI', len(example), 0) + example + bytes(4))
    with pytest.raises(InputError, match=r'record 0 is no tf\.train\.Example'):
        list(episodes(tmp_path / 'file', STATE))


def test_images_and_states_of_different_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / 'file').write_bytes(record([JPEG, JPEG], [0.0, 1.0, 2.0]))
    with pytest.raises(InputError, match='not of the same number of steps'):
        list(episodes(tmp_path / 'file', STATE))


def test_a_recording_is_not_overwritten(shard: Path, tmp_path: Path) -> None:
    convert(shard, '--out', tmp_path / 'bag')
    with pytest.raises(InputError, match='exists already'):
        convert(shard, '--out', tmp_path / 'bag')


def test_a_policy_sees_real_camera_images(bridge: Path, make_bench: Callable[..., Bench],
                                          tmp_path: Path) -> None:
    convert(bridge, '--out', tmp_path / 'bag', '--episodes', 1, '--joints', *AXES)
    topics = {camera: f'/camera/{camera}/image_raw/compressed' for camera in ('front', 'wrist')}
    bench = make_bench(activate=False, **{
        'joints.names': list(AXES[:6]), 'joints.stale_ms': 60_000,
        **{f'cameras.{camera}.transport': 'compressed' for camera in topics},
        **{f'cameras.{camera}.stale_ms': 60_000 for camera in topics},
        **{f'cameras.{camera}.topic': topic for camera, topic in topics.items()}})
    bench.node.trigger_configure()
    bench.node.trigger_activate()
    (episode,) = list(episodes(bridge, STATE))[:1]
    remap = {convert_command.camera_topic('image_0'): topics['front'],
             convert_command.camera_topic('image_1'): topics['wrist']}
    with closing(Bag(tmp_path / 'bag', remap)) as bag:
        player = Player(bag, rate=1.0)
        bench.graph.executor.add_node(player)
        heard = {*topics.values(), '/joint_states'}
        bench.graph.wait_for(lambda: not heard & set(player.unheard()), 'the policy to listen')
        player.play(bench.graph.spin_for, lambda share: None)
        bench.graph.wait_for(lambda: len(bench.stream.observed) > 1, 'observations')
        player.destroy_node()
    newest = bench.stream.observed[-1].arrays
    assert newest['front'].shape == newest['wrist'].shape == (64, 64, 3)
    assert newest['front'].std() > 10  # a scene, not a blank
    assert (newest['front'] != newest['wrist']).any()
    assert (episode.states[:, :6] == newest['joints']).all(axis=1).any()
