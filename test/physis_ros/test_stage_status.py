"""Stage times on /diagnostics are those of the devices' logs."""

from __future__ import annotations

from physis_core.runtime.telemetry import StageLog
from physis_ros.stage_status import stage_status

US = 1_000


def test_every_stage_has_its_times() -> None:
    logs = [StageLog.create(), StageLog.create()]
    for chunk in range(20):
        for device, took_us in ((0, 100), (1, 300)):
            start_ns = chunk * 1000 * US
            logs[device].append(0, 1, chunk, device, 5, 1, 1, start_ns, start_ns,
                                start_ns + took_us * US)
    status = stage_status('wam_node', logs)
    values = {item.key: float(item.value) for item in status.values}
    assert values == {
        'step 0 block 5 p50 [us]': 100.0, 'step 0 block 5 p99 [us]': 100.0,
        'step 1 block 5 p50 [us]': 300.0, 'step 1 block 5 p99 [us]': 300.0}
    assert status.name == 'wam_node: stages'
    assert '0.300 ms' in status.message


def test_nothing_has_run_yet() -> None:
    assert not stage_status('wam_node', []).values
    assert not stage_status('wam_node', [StageLog.create()]).values
