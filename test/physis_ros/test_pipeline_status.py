"""Which stage is slowest, and where it dams up, from the engine's own logs and meters."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fake_engine import MS, FakeEngine, FakeStream

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from diagnostic_msgs.msg import DiagnosticStatus

from physis_core.runtime.engine import StreamOptions
from physis_core.runtime.telemetry import EdgeMeter, StageLog
from physis_core.runtime.wiring import LinkKey
from physis_ros import pipeline_status
from physis_ros.pipeline_status import PipelineWatch
from physis_ros.status import Limit

HELD_BACK = Limit(0.01, 0.1)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine(
        logs=[StageLog.create(), StageLog.create()],
        meters={LinkKey(0, 1, 'hidden'): EdgeMeter.create(),
                LinkKey(1, -1, 'output'): EdgeMeter.create()})
    yield engine
    for block in (*(log.block for log in engine.logs),
                  *(meter.block for meter in engine.meters.values())):
        block.close()


def work(log: StageLog, step: int, took_ms: float, waited_ms: float = 0.0) -> None:
    """Ten tasks that have just ended."""
    for chunk in range(10):
        end_ns = time.monotonic_ns() - round((10 - chunk) * took_ms * MS)
        start_ns = end_ns - round(took_ms * MS)
        log.append(0, 1, chunk, step, 3, 1, 1, start_ns - round(waited_ms * MS), start_ns, end_ns)


def said(status: DiagnosticStatus) -> dict[str, str]:
    return {item.key: item.value for item in status.values}


def test_the_slowest_stage_and_the_busiest_device_are_named(engine: FakeEngine) -> None:
    work(engine.logs[0], 0, took_ms=2.0)
    work(engine.logs[1], 1, took_ms=9.0, waited_ms=4.0)
    status = PipelineWatch(engine, 5.0).status('wam_node', None, HELD_BACK)
    values = said(status)
    assert values['slowest stage'] == status.message == 'step 1 block 3 on device 1'
    assert float(values['its service time p50 [ms]']) == pytest.approx(9.0, rel=1e-3)
    assert values['busiest device'] == 'device 1'
    assert float(values['tasks waiting there p99 [ms]']) == pytest.approx(4.0, rel=1e-3)
    assert 0.0 < float(values['busy [0..1]']) <= 1.0


def test_nothing_has_run_yet(engine: FakeEngine) -> None:
    status = PipelineWatch(engine, 5.0).status('wam_node', None, HELD_BACK)
    assert (status.level, status.message) == (DiagnosticStatus.OK, 'no task has run')


def test_the_link_that_refuses_most_is_named(engine: FakeEngine) -> None:
    watch = PipelineWatch(engine, 5.0)
    full = engine.meters[LinkKey(0, 1, 'hidden')]
    assert said(watch.status('wam_node', None, HELD_BACK))['fullest link'] == 'none'
    for _ in range(100):
        full.refused()
    engine.meters[LinkKey(1, -1, 'output')].refused()
    values = said(watch.status('wam_node', None, HELD_BACK))
    assert values['fullest link'] == 'device 0 to device 1 (hidden)'
    assert float(values['sends refused there [Hz]']) > 0
    del engine.meters[LinkKey(0, 1, 'hidden')]  # its device was lost
    assert said(watch.status('wam_node', None, HELD_BACK))['fullest link'] != (
        'device 0 to device 1 (hidden)')
    full.block.close()


@pytest.mark.parametrize(('held_back', 'level'), [
    (0, DiagnosticStatus.OK), (2, DiagnosticStatus.WARN), (30, DiagnosticStatus.ERROR)])
def test_beats_without_room_are_backpressure(
        engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, held_back: int, level: bytes) -> None:
    """Of the hundred beats of ten seconds, at a chunk every 100 ms."""
    now_ns = time.monotonic_ns()
    clock = [now_ns, now_ns + 10_000 * MS]
    monkeypatch.setattr(pipeline_status.time, 'monotonic_ns', lambda: clock.pop(0))
    stream = FakeStream(StreamOptions(period_ns=100 * MS), 1)
    stream.in_flight = 4
    watch = PipelineWatch(engine, 60.0)
    watch.status('wam_node', stream, HELD_BACK)
    stream.held_back, stream.shed = held_back, 50
    status = watch.status('wam_node', stream, HELD_BACK)
    monkeypatch.undo()
    values = said(status)
    assert status.level == level
    assert ('backpressure' in status.message) == (held_back > 0)
    assert float(values['beats without room [0..1]']) == pytest.approx(held_back / 100)
    assert float(values['beats shed [0..1]']) == pytest.approx(0.5)
    assert (values['chunks in flight [1]'], values['most in flight [1]']) == ('4', '4')
