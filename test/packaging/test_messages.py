"""The generated messages are what `msg/*.msg` says, and every field explains itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from builtin_interfaces.msg import Duration, Time
from rclpy.serialization import deserialize_message, serialize_message

from physis_ros.msg import ActionChunk, StreamReport

FIELD = re.compile(r'^[\w/]+(\[\])? +(?P<name>\w+)')
UNIT_SUFFIXES = ('_s', '_hz')


def test_an_action_chunk_survives_the_wire() -> None:
    chunk = ActionChunk(
        stream_id='left_arm',
        chunk_id=7,
        epoch=2,
        capture_stamp=Time(sec=10, nanosec=5),
        period=Duration(nanosec=20_000_000),
        valid_until=Time(sec=11),
        joint_names=['shoulder', 'elbow'],
        horizon=2,
        positions=[0.0, 1.0, 2.0, 3.0],
        velocities=[0.5, 0.5, 0.5, 0.5],
        age_capture_s=0.01,
        age_queue_s=0.02,
        age_response_s=0.16,
        age_handoff_s=0.003,
        on_time=True,
    )
    chunk.header.stamp = Time(sec=10, nanosec=200_000_000)

    assert deserialize_message(serialize_message(chunk), ActionChunk) == chunk


def test_a_stream_report_survives_the_wire() -> None:
    report = StreamReport(
        stream_id='left_arm',
        window_s=1.0,
        sensor_names=['front', 'wrist', 'joints'],
        sensor_hz=[30.0, 29.5, 100.0],
        replan_hz=6.2,
        chunk_hz=6.25,
        servo_hz=200.0,
        age_max_s=0.3,
        deadline_misses=3,
        on_time_ratio=0.99,
        chunks_in_flight=4,
    )

    assert deserialize_message(serialize_message(report), StreamReport) == report


@pytest.mark.parametrize('name', ['ActionChunk', 'StreamReport'])
def test_every_field_has_a_comment(name: str, repository: Path) -> None:
    """A comment stands on the field's line, or above the block that the field is in."""
    lines = (repository / 'msg' / f'{name}.msg').read_text().splitlines()
    commented = False
    fields = 0
    for line in lines:
        if line.startswith('#'):
            commented = True
        elif not line:
            commented = False
        elif match := FIELD.match(line):
            fields += 1
            assert commented or '#' in line, f'{name}.{match["name"]} has no comment'
    assert fields > 10


@pytest.mark.parametrize('message', [ActionChunk, StreamReport])
def test_float_scalars_name_their_unit(message: type) -> None:
    for field, kind in message.get_fields_and_field_types().items():
        if kind == 'double' and not field.endswith('_ratio'):
            assert field.endswith(UNIT_SUFFIXES), f'{message.__name__}.{field}'
