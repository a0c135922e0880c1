"""The node's benches measure what they say, on real processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_core.cli.commands import execute
from physis_core.errors import InputError
from physis_ros.benches import ingest, servo


def measured(bench: Any, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert execute(bench, 'physis bench', [*arguments, '--json']) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize('load', ['none', 'engine'])
def test_servo_and_timer_are_measured_alike(load: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(servo, capsys, '--hz', '200', '--seconds', '1', '--load', load)
    for subject in ('servo_fifo', 'servo', 'rclpy_timer'):
        found = result[subject]
        assert found['rate_hz'] > 0 and found['played'] > 0
        assert list(found['period_ms']) == ['p50', 'p99', 'p99.9', 'max']
    assert not result['servo']['fifo'] and not result['rclpy_timer']['fifo']
    assert result['servo_fifo']['fifo'] or result['servo_fifo']['refusals']
    assert result['p99_error_timer_over_servo'] > 0


def test_ingest_counts_what_was_sent_and_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(ingest, capsys, '--cameras', '2', '--seconds', '1')
    assert set(result['sources']) == {'camera0', 'camera1', 'joints'}
    assert all(source['expected'] > 0 for source in result['sources'].values())
    assert result['sources']['joints']['delivered'] > 0
    assert result['cpu_percent'] > 0


def test_a_rate_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match='--hz is 5000; a servo runs at 50 to 1000 Hz'):
        execute(servo, 'physis bench servo', ['--hz', '5000'])
