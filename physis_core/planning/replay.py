"""What a pool carries of a trace of arrivals and departures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from physis_core.errors import InputError
from physis_core.planning.admission import Admission, NoRoom, Shortage
from physis_core.planning.cluster import Cluster
from physis_core.planning.profile import Profile
from physis_core.planning.slo import SLO
from physis_core.planning.strategies import Strategy
from physis_core.planning.traces import Session


@dataclass
class Replay:
    """The result of one strategy on one trace.

    Attributes:
        admitted: streams that were.
        refused: streams that were not, and why.
        carried_s: stay of the admitted [s] weighted by the share of a device that each needs.
        offered_s: the same of all.
        admission_us: processor time of each decision [us].
        time_used: mean share of the pool's time that was promised, over the trace.
        memory_used: mean share of its memory that was taken, over the trace.
    """

    admitted: int = 0
    refused: list[tuple[str, Shortage]] = field(default_factory=list)
    carried_s: float = 0.0
    offered_s: float = 0.0
    admission_us: list[float] = field(default_factory=list)
    time_used: float = 0.0
    memory_used: float = 0.0

    def admission_quantile_ms(self, quantile: float) -> float:
        """Quantile of the time of a decision [ms]."""
        return float(np.quantile(self.admission_us, quantile)) / 1e3


def replay(sessions: Sequence[Session], profiles: dict[str, Profile], cluster: Cluster,
           strategy: Strategy) -> Replay:
    """Admit and release the sessions of a trace, in time order.

    Raises:
        InputError: a session asks for what no pool could promise.
    """
    admission = Admission(cluster, strategy)
    result = Replay()
    arrivals = [(session.arrives_s, 1, session) for session in sessions]
    departures = [(session.leaves_s, 0, session) for session in sessions]
    inside: set[str] = set()
    before_s = 0.0
    horizon_s = max(session.leaves_s for session in sessions)
    for now_s, arrives, session in sorted(
            arrivals + departures, key=lambda event: (event[0], event[1], event[2].stream)):
        _weigh(result, admission, (now_s - before_s) / horizon_s)
        before_s = now_s
        if not arrives:
            if session.stream in inside:
                inside.remove(session.stream)
                admission.leave(session.stream)
            continue
        profile = profiles[session.model]
        load_s = _devices_needed(profile, session) * (session.leaves_s - session.arrives_s)
        result.offered_s += load_s
        started_ns = time.thread_time_ns()
        try:
            admission.admit(session.stream, profile, SLO(round(session.period_ms * 1e3)))
        except NoRoom as error:
            result.refused.append((session.stream, error.shortage))
        else:
            inside.add(session.stream)
            result.admitted += 1
            result.carried_s += load_s
        result.admission_us.append((time.thread_time_ns() - started_ns) / 1e3)
    if admission.pool.placed:
        raise InputError(f'{len(admission.pool.placed)} streams never leave; every session of a '
                         'trace leaves')
    return result


def _devices_needed(profile: Profile, session: Session) -> float:
    """Share of a device's time that a stream needs without batching."""
    graph = profile.graph
    busy_us = graph.passes * sum(profile.mean_us(block, 1) for block in range(graph.blocks))
    return busy_us / (session.period_ms * 1e3)


def _weigh(result: Replay, admission: Admission, weight: float) -> None:
    pool = admission.pool
    if weight <= 0 or not pool.placed:
        return
    busy = sum(pool.utilisation(device) for device in range(pool.devices))
    total = sum(device.memory_bytes for device in pool.cluster.devices)
    result.time_used += weight * busy / pool.devices
    result.memory_used += weight * (1 - sum(pool.free_bytes) / total)
