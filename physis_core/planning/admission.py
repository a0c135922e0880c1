"""Admitting streams one by one, and letting them go.  All or nothing; nobody is ever moved."""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.errors import InputError, Refused
from physis_core.planning.cluster import GB, Cluster
from physis_core.planning.plan import Plan
from physis_core.planning.pool import Pool, StreamClass
from physis_core.planning.profile import Profile
from physis_core.planning.slo import SLO
from physis_core.planning.strategies import Strategy, portfolio, unplaced_blocks, unplaced_bytes

_AMPLE = 1000  # times the period: time is no obstacle any more
_STRETCH = 1.25
_STRETCHES = 12


@dataclass(frozen=True)
class Shortage:
    """Why a stream has no place.

    Amounts are bytes for memory and fragments, devices' worth of time for time.

    Attributes:
        resource: ``memory``, ``time``, or ``fragments`` (enough memory, but not where the stages
            could go).
        missing: what has no place.
        needed: what the stream needs in all.
        free: what is not promised, on all devices together.
        total: what the devices have.
        nearest_period_us: the shortest period found at which it would be admitted; None: at no
            period.
    """

    resource: str
    missing: float
    needed: float
    free: float
    total: float
    nearest_period_us: int | None

    def __str__(self) -> str:
        remedy = ('it fits at no period; close another stream or add devices'
                  if self.nearest_period_us is None else
                  f'it would fit at a period of {self.nearest_period_us / 1e3:g} ms')
        return f'{self._amounts()}; {remedy}'

    def _amounts(self) -> str:
        if self.resource == 'time':
            return (f'{self.missing:.3g} devices of time are missing (it needs {self.needed:.3g}, '
                    f'{self.free:.3g} of {self.total:g} are not promised)')
        where = ' in one piece' if self.resource == 'fragments' else ''
        return (f'{self.missing / GB:.3g} GB of memory are missing{where} (it needs '
                f'{self.needed / GB:.3g} GB, {self.free / GB:.3g} of {self.total / GB:.4g} GB are '
                'not promised)')


class NoRoom(Refused):
    """A stream was refused; ``shortage`` says in numbers why."""

    def __init__(self, name: str, shortage: Shortage) -> None:
        super().__init__(f'stream `{name}` refused: {shortage}')
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
        return self._memory_shortage(stream_class) or self._time_shortage(stream_class)

    def _memory_shortage(self, stream_class: StreamClass) -> Shortage | None:
        """What memory lacks, whatever the devices have to do; None: nothing."""
        pool = self.pool
        trial = pool.trial(stream_class)
        needed = stream_class.profile.graph.passes * sum(stream_class.kv_bytes) + sum(
            weight for block, weight in enumerate(stream_class.weight_bytes)
            if not any(trial.holds(device, block) for device in range(pool.devices)))
        free = sum(max(0, each) for each in trial.free_bytes)
        total = sum(device.memory_bytes for device in pool.cluster.devices)
        if needed > free:
            return Shortage('memory', needed - free, needed, free, total, None)
        idle = pool.idle()
        ample = StreamClass(stream_class.profile, stream_class.period_us * _AMPLE)
        if self._strategy(idle, ample) is None:
            missing = unplaced_bytes(ample, unplaced_blocks(idle, ample))
            return Shortage('fragments', missing, needed, free, total, None)
        return None

    def _time_shortage(self, stream_class: StreamClass) -> Shortage:
        profile, pool = stream_class.profile, self.pool
        shares = [stream_class.busy_us(block, profile.max_batch) / profile.max_batch
                  / stream_class.period_us for block in range(profile.graph.blocks)]
        needed = profile.graph.passes * sum(shares)
        free = sum(max(0.0, 1.0 - pool.utilisation(device)) for device in range(pool.devices))
        unplaced = sum(shares[block] for block in unplaced_blocks(pool, stream_class))
        # Where only this strategy finds no place, it is the whole stream that has none.
        missing = max(needed - free, unplaced) or needed
        return Shortage('time', missing, needed, free, pool.devices,
                        self._nearest_period_us(stream_class, needed / max(free, needed / _AMPLE)))

    def _nearest_period_us(self, stream_class: StreamClass, stretch: float) -> int | None:
        """The first of a few longer periods at which a stream would be admitted."""
        period_us = stream_class.period_us * max(1.0, stretch)
        for _ in range(_STRETCHES):
            longer = StreamClass(stream_class.profile, round(period_us))
            if self._strategy(self.pool, longer) is not None:
                return longer.period_us
            period_us *= _STRETCH
        return None


def _check_response(profile: Profile, slo: SLO) -> None:
    if slo.max_response_us is None:
        return
    graph = profile.graph
    fastest_us = graph.steps * sum(profile.p99_us(block, 1) for block in range(graph.blocks))
    if slo.max_response_us < fastest_us:
        raise InputError(
            f'`{profile.model}`: a response within {slo.max_response_us / 1e3:g} ms is asked for, '
            f'but the stages of a chunk alone take {fastest_us / 1e3:g} ms; allow at least that')
