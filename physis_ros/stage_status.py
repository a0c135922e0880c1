"""Computing times of the stages, for /diagnostics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from physis_core.observability.stages import stage_numbers
from physis_core.runtime.telemetry import StageLog

# A few seconds of one stream; the percentiles of more would only be older.
_TASKS_PER_DEVICE = 1024


def stage_status(node: str, logs: Sequence[StageLog]) -> DiagnosticStatus:
    """Median and p99 time of a task at each stage [us], over the latest tasks of each device."""
    records = [log.latest(_TASKS_PER_DEVICE) for log in logs]
    numbers = stage_numbers(np.concatenate(records)) if records else []
    status = DiagnosticStatus(
        name=f'{node}: stages', hardware_id=node, level=DiagnosticStatus.OK,
        message='no task has run' if not numbers else
        f'slowest median {max(stage.service_p50_ms for stage in numbers):.3f} ms')
    for stage in numbers:
        place = f'step {stage.step} block {stage.block}'
        for what, took_ms in (('p50', stage.service_p50_ms), ('p99', stage.service_p99_ms)):
            status.values.append(
                KeyValue(key=f'{place} {what} [us]', value=f'{took_ms * 1e3:.1f}'))
    return status
