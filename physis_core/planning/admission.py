"""Admitting streams one by one, and letting them go.  All or nothing; nobody is ever moved."""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.errors import InputError, Refused
from physis_core.planning.cluster import GB, Cluster
from physis_core.planning.plan import Plan
from physis_core.planning.pool import Pool, StreamClass
from physis_core.planning.profile import Profile
from physis_core.planning.slo import SLO
from physis_core.planning.strategies import Strategy, portfolio, unplaced_bytes

_AMPLE = 1000  # times the period: time is no obstacle any more
_STRETCH = 1.25
_STRETCHES = 12


@dataclass(frozen=True)
class Shortage:
    """Why a stream has no place.

    Attributes:
        resource: ``memory``, ``time``, or ``fragments`` (enough of both, but not where the
            weights could go).
        missing: bytes for memory and fragments, devices' worth of time for time.
        nearest_period_us: the shortest period found at which it would be admitted; None: at no
            period, it is memory that lacks.
    """

    resource: str
    missing: float
    nearest_period_us: int | None


class NoRoom(Refused):
    """A stream was refused; ``shortage`` says in numbers why."""

    def __init__(self, name: str, shortage: Shortage) -> None:
        missing = (f'{shortage.missing:.3g} devices of time are missing'
                   if shortage.resource == 'time' else
                   f'{shortage.missing / GB:.3g} GB of memory are missing'
                   + (' in one piece' if shortage.resource == 'fragments' else ''))
        nearest = ('it fits at no period; close another stream or add devices'
                   if shortage.nearest_period_us is None else
                   f'it would fit at a period of {shortage.nearest_period_us / 1e3:g} ms')
        super().__init__(f'stream `{name}` refused: {missing}; {nearest}')
        self.shortage = shortage


class Admission:
    """The front door of a pool."""

    def __init__(self, cluster: Cluster, strategy: Strategy = portfolio) -> None:
        self.pool = Pool(cluster)
        self._strategy = strategy

    def admit(self, name: str, profile: Profile, slo: SLO) -> Plan:
        """Reserve everything a stream needs, and return how it runs.

        Raises:
            InputError: no pool could keep this promise (a period shorter than a stage, a response
                shorter than the stages of one chunk).
            NoRoom: this pool has no room for it now; nothing has changed.
        """
        stream_class = StreamClass(profile, slo.period_us)
        _check_response(profile, slo)
        trial = self._strategy(self.pool, stream_class)
        if trial is None:
            raise NoRoom(name, self._shortage(stream_class))
        self.pool.keep(name, trial)
        return self.pool.plan(name)

    def leave(self, name: str) -> None:
        """Give back everything a stream had."""
        self.pool.remove(name)

    def _shortage(self, stream_class: StreamClass) -> Shortage:
        pool = self.pool
        trial = pool.trial(stream_class)
        passes = stream_class.profile.graph.passes
        needed = passes * sum(stream_class.kv_bytes) + sum(
            weight for block, weight in enumerate(stream_class.weight_bytes)
            if not any(trial.holds(device, block) for device in range(pool.devices)))
        free = sum(max(0, each) for each in trial.free_bytes)
        if needed > free:
            return Shortage('memory', needed - free, None)
        ample = StreamClass(stream_class.profile, stream_class.period_us * _AMPLE)
        if self._strategy(pool, ample) is None:
            return Shortage('fragments', unplaced_bytes(pool, ample), None)
        profile = stream_class.profile
        task_us = [stream_class.busy_us(block, profile.max_batch) / profile.max_batch
                   for block in range(profile.graph.blocks)]
        wanted = passes * sum(task_us) / stream_class.period_us
        idle = sum(1.0 - used for used in trial.utilisation)
        return Shortage('time', max(0.0, wanted - idle),
                        self._nearest_period_us(stream_class, wanted / max(idle, wanted / _AMPLE)))

    def _nearest_period_us(self, stream_class: StreamClass, stretch: float) -> int:
        """The first of a few longer periods at which a stream would be admitted."""
        period_us = stream_class.period_us * max(1.0, stretch)
        for _ in range(_STRETCHES):
            longer = StreamClass(stream_class.profile, round(period_us))
            if self._strategy(self.pool, longer) is not None:
                return longer.period_us
            period_us *= _STRETCH
        return stream_class.period_us * _AMPLE


def _check_response(profile: Profile, slo: SLO) -> None:
    if slo.max_response_us is None:
        return
    graph = profile.graph
    fastest_us = graph.steps * sum(profile.p99_us(block, 1) for block in range(graph.blocks))
    if slo.max_response_us < fastest_us:
        raise InputError(
            f'`{profile.model}`: a response within {slo.max_response_us / 1e3:g} ms is asked for, '
            f'but the stages of a chunk alone take {fastest_us / 1e3:g} ms; allow at least that')
