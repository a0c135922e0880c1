"""The node's benches measure what they say, on real processes."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_core.cli.commands import execute
from physis_core.errors import InputError
from physis_ros.benches import handover, ingest, servo
from physis_ros.benches.recorded_streams import pack, shipped_streams


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


def test_handovers_are_measured_on_the_shipped_recordings(capsys: pytest.CaptureFixture[str]
                                                          ) -> None:
    result = measured(handover, capsys)
    assert 'physis demo' in result['source'] and 'not told a prefix' in result['source']
    rows = {(row['latency_chunks'], row['strategy']): row for row in result['rows']}
    assert rows.keys() == {(latency, strategy) for latency in (0, 1, 2, 4)
                           for strategy in ('replace', 'blend', 'ensemble', 'prefix')}
    for row in rows.values():
        assert row['boundaries'] > 100 and row['overlap_points'] == 4
        assert 0 < row['servo_position_step_p50_rad'] <= row['servo_position_step_rad']
    for latency in (0, 1, 2, 4):
        raw = rows[latency, 'replace']
        for strategy in ('blend', 'ensemble', 'prefix'):
            assert (rows[latency, strategy]['plan_position_jump_p50_rad']
                    < raw['plan_position_jump_p50_rad'])
            assert (rows[latency, strategy]['servo_velocity_step_p50_rad_s']
                    < raw['servo_velocity_step_p50_rad_s'])


def test_without_jitter_no_chunk_is_late(capsys: pytest.CaptureFixture[str]) -> None:
    rows = measured(handover, capsys, '--jitter-ms', '0')['rows']
    assert not any(row['late'] or row['dropped'] or row['underruns'] for row in rows)


def test_a_recording_of_ones_own_is_measured_with_its_own_latency(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = shipped_streams()[1]
    lines = [{**{name: value for name, value in vars(chunk).items() if name != 'velocities'},
              'positions': chunk.positions.tolist()}
             for epoch in stream.epochs for chunk in epoch]
    (tmp_path / 'chunks.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    result = measured(handover, capsys, '--recording', str(tmp_path))
    assert result['source'] == str(tmp_path)
    assert [row['strategy'] for row in result['rows']] == ['replace', 'blend', 'ensemble', 'prefix']
    execute(handover, 'physis bench', ['--recording', str(tmp_path)])
    shown = capsys.readouterr().out
    assert 'in chunk periods' in shown and 'do not overlap' not in shown
    lead = stream.lead_ms / 80.0
    assert all(row['latency_chunks'] == pytest.approx(lead, abs=0.01) for row in result['rows'])


def test_strategies_that_cannot_differ_are_said_not_to(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chunks = [chunk for chunk in shipped_streams()[0].epochs[0] if chunk.chunk % 2 == 0]
    lines = [{**{name: value for name, value in vars(chunk).items() if name != 'velocities'},
              'positions': chunk.positions.tolist()} for chunk in chunks]
    (tmp_path / 'chunks.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    rows = {row['strategy']: {**row, 'strategy': ''} for row in measured(
        handover, capsys, '--recording', str(tmp_path), '--jitter-ms', '0')['rows']}
    assert rows['replace']['overlap_points'] == 0
    assert rows['replace'] == rows['ensemble'] == rows['prefix']
    execute(handover, 'physis bench', ['--recording', str(tmp_path), '--jitter-ms', '0'])
    assert 'replace, ensemble and prefix are the same' in ' '.join(capsys.readouterr().out.split())


def test_packing_keeps_every_number(tmp_path: Path) -> None:
    streams = shipped_streams()
    pack(streams, tmp_path / 'packed.npz')
    for before, after in zip(streams, shipped_streams(tmp_path / 'packed.npz'), strict=True):
        assert before.latency_chunks == after.latency_chunks
        for ours, theirs in zip(
                chain(*before.epochs), chain(*after.epochs), strict=True):
            assert (ours.positions == theirs.positions).all()
            assert all(getattr(ours, name) == getattr(theirs, name) for name in (
                'epoch', 'chunk', 'due_ns', 'capture_ns', 'received_ns', 'finished_ns'))


@pytest.mark.parametrize(('options', 'sentence'), [
    (['--jitter-ms', '-1'], '--jitter-ms is -1; it is at least 0'),
    (['--servo-hz', '5'], '--servo-hz is 5; a servo runs at 50 to 1000 Hz'),
    (['--recording', '/nowhere'], 'recording /nowhere cannot be read'),
])
def test_handover_refuses_what_it_cannot_play(options: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        execute(handover, 'physis bench handover', options)
