"""Stages that do not take the time their profile says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physis_core.planning.profile import Profile
from physis_core.units import NS_PER_US

LEAST_TASKS = 32
_SLOW, _FAST = 1.25, 0.5


@dataclass(frozen=True)
class OffProfile:
    """A block that takes another time than planned with, on one device and at one batch size."""

    device: int
    block: int
    batch: int
    expected_us: int
    measured_us: int

    def __str__(self) -> str:
        return (f'device {self.device} takes {self.measured_us} us for block {self.block} at batch '
                f'{self.batch}, its profile says {self.expected_us} us; measure it again with '
                '`physis profile`, or find out what else runs there')


def off_profile(profile: Profile, records: Sequence[NDArray]) -> list[OffProfile]:
    """Blocks whose median time is off, given the latest tasks of each device."""
    found = []
    for device, tasks in enumerate(records):
        for block, batch in sorted(set(zip(tasks['block'].tolist(), tasks['batch'].tolist(),
                                           strict=True))):
            own = tasks[(tasks['block'] == block) & (tasks['batch'] == batch)]
            if len(own) < LEAST_TASKS or batch > profile.max_batch:
                continue
            measured_us = round(float(np.median(own['end_ns'] - own['start_ns'])) / NS_PER_US)
            expected_us = profile.mean_us(block, batch)
            if not _FAST * expected_us <= measured_us <= _SLOW * expected_us:
                found.append(OffProfile(device, block, batch, expected_us, measured_us))
    return found
