"""`physis replay` with the real policy: what was recorded at a replay is replayed again."""

from __future__ import annotations

import array
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')
pytest.importorskip('rosbags', reason='rosbags is not installed')

from graph import NAMES
from rclpy.time import Time
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header

from physis_core.cli.commands import execute
from physis_core.errors import InputError
from physis_core.units import NS_PER_S
from physis_ros.benches.recorded_streams import read_recording
from physis_ros.replay import command
from physis_ros.replay.bag_writer import BagWriter

CAMERAS = ('/camera/front/image_raw', '/camera/wrist/image_raw')
HZ, MOMENTS = 20, 60
PARAMETERS = """
/**/wam_node:
  ros__parameters:
    record: {folder}
    cameras: {{front: {{stale_ms: 5000.0}}, wrist: {{stale_ms: 5000.0}}}}
    joints: {{stale_ms: 5000.0}}
    trajectory: {{topic: ''}}
"""


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """Three seconds of two cameras and the joints."""
    with closing(BagWriter(tmp_path / 'bag')) as writer:
        for moment in range(MOMENTS):
            time_ns = NS_PER_S + moment * NS_PER_S // HZ
            header = Header(stamp=Time(nanoseconds=time_ns).to_msg())
            writer.write('/joint_states', JointState(
                header=header, name=list(NAMES), position=[0.01 * moment] * len(NAMES)), time_ns)
            for topic in CAMERAS:
                writer.write(topic, Image(
                    header=header, height=64, width=64, encoding='rgb8', step=192,
                    data=array.array('B', bytes([moment]) * (64 * 192))), time_ns)
    return tmp_path / 'bag'


def replayed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert execute(command, 'physis replay', [*map(str, arguments), '--json']) == 0
    return json.loads(capsys.readouterr().out)


def test_a_replay_reports_and_can_be_recorded_and_replayed(
        bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / 'record.yaml'
    config.write_text(PARAMETERS.format(folder=tmp_path / 'sessions'))
    first = replayed(capsys, bag, '--config', config)
    assert first['recorded'] == dict.fromkeys((*CAMERAS, '/joint_states'), MOMENTS)
    assert set(first['sensor_hz']) == {'front', 'wrist', 'joints'}
    age = first['age_ms']
    assert first['chunks'] > 0 and first['chunk_hz'] > 0
    assert 0 < age['p50'] <= age['p99'] <= age['max']

    (session,) = (tmp_path / 'sessions').iterdir()
    assert read_recording(session).overlap_points == 0  # a chunk of 160 ms every 160 ms
    second = replayed(capsys, session / 'observations', '--config', config)
    assert second['recorded'].keys() == first['recorded'].keys()
    assert 0 < second['recorded'][CAMERAS[0]] <= MOMENTS
    assert second['chunks'] > 0


def test_a_rate_that_is_not_positive_is_refused(bag: Path) -> None:
    with pytest.raises(InputError, match='--rate is 0; it must be positive'):
        execute(command, 'physis replay', [str(bag), '--rate', '0'])
