"""A run's numbers in the three forms that people and programs read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from physis_ros.demo.measures import AgeStatistics, Measures

# Where the engine encodes the observation of a chunk.
_FIRST_STAGE = 'step 0 block 0'
# Below this share the reader is told what helps.
_ENOUGH_ON_TIME = 0.95
_MORE_TIME = '; the machine is busy or the lead short: try --delay-ms 80'

Row = tuple[str, str, str]
"""A quantity, its value with unit, and what it means."""


def rows(measures: Measures, stage_us: Mapping[str, float]) -> list[Row]:
    """Every number with its unit and one line that says what it is."""
    age = measures.age_ms
    return [
        ('success', f'{100 * measures.success_rate:.0f} % of {measures.episodes} episodes',
         'the cube was carried to the disc and let go'),
        ('time of a success', _seconds(measures.episode_s), 'median, simulated'),
        *((f'sensor: {source}', _hz(rate_hz), 'messages received from this source')
          for source, rate_hz in measures.sensor_hz.items()),
        ('replan', _hz(measures.replan_hz), 'newer observations that changed the motion'),
        ('chunk', _hz(measures.chunk_hz), 'action chunks that took effect'),
        ('servo', _hz(measures.servo_hz),
         'commands of servo_node; they move the arm only with --output forward_command'),
        ('joint targets', _hz(measures.target_hz), 'commands of the controller that moved the arm'),
        ('age p50 / p99 / max', f'{age.p50:.0f} / {age.p99:.0f} / {age.max:.0f} ms',
         'capture of the oldest input to effect at the controller'),
        ('age, mean by part', _parts(age), 'capture + queue + response + handoff'),
        ('on time', f'{100 * measures.on_time_ratio:.2f} %',
         f'{measures.deadline_misses} of {measures.chunks} chunks due in episodes missed their '
         'planned start'
         + (_MORE_TIME if measures.on_time_ratio < _ENOUGH_ON_TIME else '')),
        ('refused by the controller', str(measures.rejected), 'trajectories it did not accept'),
        ('stage, fastest / median / slowest', _stages(stage_us),
         f'one of the {len(stage_us)} stages of a chunk, medians{_slowest(stage_us)}'),
        ('real time', f'{100 * measures.real_time_factor:.1f} %',
         'simulated time over elapsed time; less than 100: the machine is too slow'),
    ]


def table(measures: Measures, stage_us: Mapping[str, float]) -> Table:
    """The rows for a terminal."""
    result = Table(title='Physis demo: measured on the topics', title_justify='left')
    result.add_column('quantity', no_wrap=True)
    result.add_column('value', justify='right', no_wrap=True)
    result.add_column('what it is', style='dim')
    for row in rows(measures, stage_us):
        result.add_row(*row)
    return result


def write_summary(path: Path, measures: Measures, stage_us: Mapping[str, float],
                  settings: Mapping[str, Any]) -> None:
    """Write summary.json; what could not be measured is null."""
    age = asdict(measures.age_ms)
    data = {**asdict(measures), 'age_ms': age, 'stage_us': dict(stage_us),
            'settings': dict(settings)}
    path.write_text(json.dumps(_finite(data), indent=2) + '\n')


def _hz(rate_hz: float) -> str:
    return 'not measured' if math.isnan(rate_hz) else f'{rate_hz:.2f} Hz'


def _seconds(duration_s: float) -> str:
    return 'none' if math.isnan(duration_s) else f'{duration_s:.1f} s'


def _parts(age: AgeStatistics) -> str:
    return f'{age.capture:.1f} + {age.queue:.1f} + {age.response:.1f} + {age.handoff:.1f} ms'


def _stages(stage_us: Mapping[str, float]) -> str:
    if not stage_us:
        return 'not measured'
    times = sorted(stage_us.values())
    return f'{times[0]:.0f} / {times[len(times) // 2]:.0f} / {times[-1]:.0f} us'


def _slowest(stage_us: Mapping[str, float]) -> str:
    """Which stage is the slowest, and why that is no surprise where it is the first of a chunk."""
    if not stage_us:
        return ''
    name = max(stage_us, key=lambda stage: stage_us[stage])
    return f'; slowest: {name}' + (
        ', which also encodes the images' if name == _FIRST_STAGE else '')


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value
