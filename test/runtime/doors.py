"""Small front doors on virtual devices."""

from __future__ import annotations

import time
from collections.abc import Callable

from physis_core.graph import StageGraph
from physis_core.planning.cluster import bare_cluster
from physis_core.planning.profile import Profile, given_profile
from physis_core.planning.slo import SLO
from physis_core.runtime.front_door import FrontDoor
from physis_core.runtime.virtual import VirtualModel

GRAPH = StageGraph(steps=2, blocks=2)
TIMES_US = (20_000, 30_000, 40_000, 50_000)
MODEL = VirtualModel(GRAPH, 10_000, 10_000)
PROFILE: Profile = given_profile('virtual', GRAPH, TIMES_US)
SLO_400_MS = SLO(400_000)
"""Four stages at 12.5 ms each in full batches: 16 streams on two devices."""


def door(slots: int = 64, devices: int = 2) -> FrontDoor:
    """Two virtual devices, whose stages take 10 ms and 10 ms more for each member."""
    return FrontDoor(MODEL, PROFILE, bare_cluster(devices, 1e6), slots)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something to become so."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, 'it did not happen in time'
        time.sleep(0.01)
