"""What stages and batches did, from the records of tasks that devices keep.

A record array has the fields ``stream chunk step block batch streams arrived_ns start_ns end_ns``;
tasks that ran in one call have the same start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from physis_core.units import NS_PER_MS

Records = NDArray[Any]


@dataclass(frozen=True)
class StageNumbers:
    """One stage on one device [ms]."""

    step: int
    block: int
    tasks: int
    service_p50_ms: float
    service_p99_ms: float
    queueing_p50_ms: float
    queueing_p99_ms: float


@dataclass(frozen=True)
class BatchNumbers:
    """The batches of a device.

    Attributes:
        batches: how many there were.
        mean: tasks in a batch.
        streams_mean: streams in a batch.
        sizes: share of the batches of each size, by size.
        gain: time that the tasks would have taken alone, over the time they took; NaN where no
            task ran alone, so that nobody knows.
    """

    batches: int
    mean: float
    streams_mean: float
    sizes: dict[int, float]
    gain: float


def stage_numbers(records: Records) -> list[StageNumbers]:
    """Service and queueing time of each stage, by step and block."""
    numbers = []
    keys = records['step'].astype(np.int64) * 65536 + records['block']
    for key in np.unique(keys):
        own = records[keys == key]
        service = np.percentile(own['end_ns'] - own['start_ns'], (50, 99)) / NS_PER_MS
        queueing = np.percentile(np.maximum(own['start_ns'] - own['arrived_ns'], 0),
                                 (50, 99)) / NS_PER_MS
        step, block = divmod(int(key), 65536)
        numbers.append(StageNumbers(step, block, len(own), *map(float, (*service, *queueing))))
    return numbers


def batch_numbers(records: Records) -> BatchNumbers:
    """How tasks shared calls."""
    if not len(records):
        return BatchNumbers(0, float('nan'), float('nan'), {}, float('nan'))
    weights = 1.0 / records['batch']  # every batch counts once
    batches = float(weights.sum())
    sizes = {int(size): float(weights[records['batch'] == size].sum() / batches)
             for size in np.unique(records['batch'])}
    return BatchNumbers(round(batches), len(records) / batches,
                        float((weights * records['streams']).sum() / batches), sizes,
                        _gain(records, weights))


def busy_ratio(records: Records, first_ns: int, last_ns: int) -> float:
    """Share of a span of time that a device spent in batches."""
    if not len(records) or last_ns <= first_ns:
        return 0.0
    inside = np.minimum(records['end_ns'], last_ns) - np.maximum(records['start_ns'], first_ns)
    return float((np.maximum(inside, 0) / records['batch']).sum() / (last_ns - first_ns))


def _gain(records: Records, weights: NDArray[np.float64]) -> float:
    service = (records['end_ns'] - records['start_ns']).astype(np.float64)
    alone = records['batch'] == 1
    if not alone.any():
        return float('nan')
    return float(service[alone].mean()) * len(records) / float((service * weights).sum())
