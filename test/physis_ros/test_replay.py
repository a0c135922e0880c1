"""What a policy saw and did can be recorded, and played to a policy again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')
pytest.importorskip('rosbags', reason='rosbags is not installed')

import rclpy
from graph import NAMES
from node_bench import Bench
from sensor_msgs.msg import CompressedImage

from physis_core.errors import InputError
from physis_ros.benches.recorded_streams import read_recording
from physis_ros.ingest.image import pixels_of
from physis_ros.msg import ActionChunk
from physis_ros.replay.bag import Bag
from physis_ros.replay.player import Player
from physis_ros.replay.recording import SessionRecording

FRONT = '/camera/front/image_raw'
PATIENT = {f'{source}.stale_ms': 60_000 for source in ('cameras.front', 'cameras.wrist', 'joints')}


@pytest.fixture
def session(make_bench: Callable[..., Bench], tmp_path: Path) -> tuple[Bench, Path]:
    """An active node, and the folder of a session that it has recorded."""
    bench = make_bench(record=tmp_path, **PATIENT)
    (heard,) = bench.listen((ActionChunk, '/wam_node/action_chunk'))
    for _ in range(3):
        bench.observe()
        bench.stream.finish(start=0.3, due_in_ms=1500.0)
    bench.graph.wait_for(lambda: len(heard) == 3, 'three chunks')
    bench.node.trigger_deactivate()
    (folder,) = tmp_path.iterdir()
    return bench, folder


def recorded_as_seen(bench: Bench, folder: Path, show: Callable[[], None]
                     ) -> tuple[np.ndarray, Path]:
    """The first front image that the model saw, and the session that ended after it."""
    def seen() -> bool:
        show()
        bench.graph.feel()
        bench.graph.show('wrist')
        bench.graph.spin_for(0.02)
        return bool(bench.stream.observed)

    bench.graph.wait_for(seen, 'an observation')
    saw = bench.stream.observed[0].arrays['front']
    bench.node.trigger_deactivate()
    (session,) = folder.iterdir()
    return saw, session


def test_observations_are_recorded_as_the_model_saw_them(session: tuple[Bench, Path]) -> None:
    bench, folder = session
    observed = bench.stream.observed
    with closing(Bag(folder / 'observations', {})) as bag:
        assert bag.expected() == {FRONT: len(observed), '/camera/wrist/image_raw': len(observed),
                                  '/joint_states': len(observed)}
        messages = list(bag.messages())
    fronts = [recorded.message for recorded in messages if recorded.topic == FRONT]
    for message, seen in zip(fronts, observed, strict=True):
        pixels = np.frombuffer(message.data, np.uint8).reshape(64, 64, 3)
        assert (pixels == seen.arrays['front']).all()
    # Images come last, or a replay would put them together with the joints of the time before.
    assert [recorded.topic == '/joint_states' for recorded in messages[:3]] == [True, False, False]
    (joints,) = {tuple(recorded.message.name) for recorded in messages
                 if recorded.topic == '/joint_states'}
    assert joints == NAMES


def test_chunks_are_recorded_as_they_were_delivered(session: tuple[Bench, Path]) -> None:
    _, folder = session
    (chunks,) = read_recording(folder).epochs
    assert [chunk.chunk for chunk in chunks] == [0, 1, 2]
    assert chunks[0].positions.shape == (8, 6)
    assert chunks[0].positions[0] == pytest.approx(0.3)


def test_a_recording_is_played_to_a_policy(session: tuple[Bench, Path]) -> None:
    bench, folder = session
    recorded = len(bench.stream.observed)
    bench.node.trigger_activate()
    with closing(Bag(folder / 'observations', {})) as bag:
        player = Player(bag, rate=1.0)
        bench.graph.executor.add_node(player)
        bench.graph.wait_for(lambda: not player.unheard(), 'the policy to listen')
        shares: list[float] = []
        player.play(bench.graph.spin_for, shares.append)
        bench.graph.wait_for(lambda: bench.stream.observed, 'an observation')
        player.destroy_node()
    assert shares[-1] == pytest.approx(1.0)
    assert len(bench.stream.observed) <= recorded
    newest = bench.stream.observed[-1]
    assert 0 <= newest.received_ns - newest.capture_ns < 60_000_000_000  # stamps are of now


def test_a_compressed_camera_is_replayed_by_the_parameters_that_recorded_it(
        make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    picture = pytest.importorskip('PIL.Image')
    topic = '/cam/front/compressed'
    bench = make_bench(activate=False, record=tmp_path, **{
        'cameras.front.topic': topic, 'cameras.front.transport': 'compressed', **PATIENT})
    bench.node.trigger_configure()
    bench.node.trigger_activate()
    camera = bench.graph.probe.create_publisher(CompressedImage, topic, 10)
    bench.graph.wait_for(camera.get_subscription_count, topic)
    stored = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (96, 96, 3), np.uint8)
    picture.fromarray(noise).save(stored, 'jpeg')

    def show() -> None:
        message = CompressedImage(format='jpeg', data=stored.getvalue())
        message.header.stamp = bench.graph.now()
        camera.publish(message)

    first, session = recorded_as_seen(bench, tmp_path, show)
    bench.node.trigger_activate()
    with closing(Bag(session, {})) as bag:
        assert bag.topics()[topic] is CompressedImage
        player = Player(bag, rate=1.0)
        bench.graph.executor.add_node(player)
        bench.graph.wait_for(lambda: not player.unheard(), 'the policy to listen')
        player.play(bench.graph.spin_for, lambda share: None)
        bench.graph.wait_for(lambda: bench.stream.observed, 'an observation')
        player.destroy_node()
    assert (bench.stream.observed[0].arrays['front'] == first).all()


@pytest.mark.parametrize(('encoding', 'recorded', 'warned'), [
    ('bgr8', 'bgr8', False), ('yuyv', 'rgb8', True)])
def test_images_are_recorded_in_the_encoding_that_a_replay_reads_into_them(
        make_bench: Callable[..., Bench], tmp_path: Path, capfd: pytest.CaptureFixture[str],
        encoding: str, recorded: str, warned: bool) -> None:
    bench = make_bench(record=tmp_path, **{'cameras.front.encoding': encoding, **PATIENT})
    pixels = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    saw, session = recorded_as_seen(
        bench, tmp_path, lambda: bench.graph.show('front', pixels=pixels))
    with closing(Bag(session, {})) as bag:
        message = next(found.message for found in bag.messages() if found.topic == FRONT)
    assert message.encoding == recorded
    assert (pixels_of('front', message, '' if warned else encoding) == saw).all()
    assert ('images are recorded as rgb8' in capfd.readouterr().err) is warned


def test_a_topic_of_another_type_is_said_to_be_so(session: tuple[Bench, Path]) -> None:
    bench, folder = session
    # In a process of its own, as it were: in one, the middleware refuses the second type.
    context = rclpy.Context()
    rclpy.init(context=context)
    listener = rclpy.create_node('listener', context=context)
    listener.create_subscription(CompressedImage, '/cam', lambda message: None, 1)
    with closing(Bag(folder, {FRONT: '/cam'})) as bag:
        mapped = Player(bag, rate=1.0)
        bench.graph.wait_for(lambda: 'CompressedImage' in mapped.why_unheard('/cam'), 'the types')
        assert mapped.why_unheard('/cam') == (
            '/cam was recorded as sensor_msgs/msg/Image, and the policy listens for '
            'sensor_msgs/msg/CompressedImage: correct `cameras.NAME.transport`, or map the topic '
            'with --map')
        mapped.destroy_node()
    with closing(Bag(folder, {FRONT: '/nobody'})) as bag:
        alone = Player(bag, rate=1.0)
        assert alone.why_unheard('/nobody') == 'nobody listens to /nobody: map it with --map'
        alone.destroy_node()
    listener.destroy_node()
    rclpy.shutdown(context=context)


def test_a_session_and_its_parts_are_the_same_recording(session: tuple[Bench, Path]) -> None:
    _, folder = session
    with closing(Bag(folder, {})) as whole, closing(Bag(folder / 'observations', {})) as part:
        assert whole.expected() == part.expected()
    streams = [read_recording(path) for path in (
        folder, folder / 'observations', folder / 'chunks.jsonl')]
    assert {len(stream.epochs[0]) for stream in streams} == {3}


def test_topics_can_be_mapped(session: tuple[Bench, Path]) -> None:
    _, folder = session
    with closing(Bag(folder / 'observations', {FRONT: '/cam'})) as bag:
        assert '/cam' in bag.topics() and FRONT not in bag.topics()
    with pytest.raises(InputError, match='has no topic /nowhere for a policy; it has /cam'):
        Bag(folder / 'observations', {'/nowhere': '/cam'})


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='no readable rosbag2 recording'):
        Bag(tmp_path, {})
    (tmp_path / 'chunks.jsonl').write_text('')
    with pytest.raises(InputError, match='no two chunks of one epoch'):
        read_recording(tmp_path / 'chunks.jsonl')
    (tmp_path / 'chunks.jsonl').write_text('{')
    with pytest.raises(InputError, match='cannot be read'):
        read_recording(tmp_path / 'chunks.jsonl')


def test_a_folder_that_cannot_be_written_stops_the_activation(
        make_bench: Callable[..., Bench], tmp_path: Path, capfd: pytest.CaptureFixture[str]
        ) -> None:
    (tmp_path / 'file').write_text(json.dumps({}))
    bench = make_bench(activate=False, record=tmp_path / 'file')
    bench.node.trigger_configure()
    bench.node.trigger_activate()
    assert 'parameter `record`' in capfd.readouterr().err
    assert not bench.engine.streams


def test_sessions_that_begin_within_a_second_have_a_folder_each(tmp_path: Path) -> None:
    sessions = [SessionRecording(tmp_path, {}, '/instruction') for _ in range(3)]
    for session in sessions:
        session.close()
    assert len({session.folder for session in sessions}) == 3
