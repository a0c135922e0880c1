"""How many equal streams a pool can carry.

The bound: memory holds the KV of every stream and one copy of the weights, and time holds every
stage at the cost it has in the best batch, t(B)/B::

    UB = min((G M - L w) / (S kv), G T / (S min_B t(B)/B))
"""

from __future__ import annotations

from physis_core.errors import InputError
from physis_core.planning.cluster import Cluster
from physis_core.planning.pool import FULL, Pool, StreamClass, Trial
from physis_core.planning.pool_schedule import PoolSchedule, pool_schedule
from physis_core.planning.strategies import STRATEGIES, Strategy

_EVENING = 8


def upper_bound(cluster: Cluster, stream_class: StreamClass) -> float:
    """UB, no placement holds more streams."""
    profile, graph = stream_class.profile, stream_class.profile.graph
    memory = sum(device.memory_bytes for device in cluster.devices)
    groups = profile.groups
    weights = sum(group.blocks * group.weight_bytes for group in groups)
    kv = graph.passes * sum(group.blocks * group.kv_bytes for group in groups)
    task_us = graph.passes * sum(
        group.blocks * min(time / (index + 1) for index, time in enumerate(group.times.p99_us))
        for group in groups)
    by_time = len(cluster.devices) * stream_class.period_us / task_us
    return min(by_time, max(0, memory - weights) / kv) if kv else by_time


def capacity(cluster: Cluster, stream_class: StreamClass, strategy: str) -> Pool:
    """The pool after as many equal streams as a strategy can place, one after the other.

    Raises:
        InputError: the strategy is not known.
    """
    if strategy not in STRATEGIES:
        raise InputError(f'strategy `{strategy}` is not known; choose one of '
                         f'{", ".join(STRATEGIES)}')
    return _filled(Pool(cluster), stream_class, STRATEGIES[strategy],
                   int(upper_bound(cluster, stream_class)))


def wrap_around(cluster: Cluster, stream_class: StreamClass) -> Pool:
    """The pool with as many equal streams as wrap-around placement can hold.

    All streams are known here: walk the blocks in order, fill a device with that block's tasks of
    all streams and steps, go on to the next device.  At most L + G - 1 copies of the weights.
    """
    for count in range(int(upper_bound(cluster, stream_class)), 0, -1):
        pool = wrap(cluster, stream_class, count)
        if pool is not None:
            return pool
    return Pool(cluster)


def wrap(cluster: Cluster, stream_class: StreamClass, count: int) -> Pool | None:
    """Wrap-around placement of ``count`` streams, as evenly loaded as it can; None: no room."""
    best = _wrapped(cluster, stream_class, count, FULL)
    low, high = 0.0, FULL
    for _ in range(_EVENING if best is not None else 0):
        middle = (low + high) / 2
        found = _wrapped(cluster, stream_class, count, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def best_placement(cluster: Cluster, stream_class: StreamClass) -> dict[str, Pool]:
    """What each strategy can place, ``wrap`` and ``portfolio`` (the best of them) included."""
    pools = {name: capacity(cluster, stream_class, name)
             for name in ('even', 'best_fit', 'best_fit_lds', 'spread')}
    pools['wrap'] = wrap_around(cluster, stream_class)
    pools['portfolio'] = max(pools.values(), key=lambda pool: len(pool.placed))
    return pools


def _filled(pool: Pool, stream_class: StreamClass, strategy: Strategy, limit: int) -> Pool:
    for number in range(limit):
        trial = strategy(pool, stream_class)
        if trial is None:
            break
        pool.keep(f'stream-{number}', trial)
    return pool


def _wrapped(cluster: Cluster, stream_class: StreamClass, count: int, limit: float
             ) -> Pool | None:
    """Wrap-around placement of exactly ``count`` streams, no device busier than ``limit``."""
    graph = stream_class.profile.graph
    pool = Pool(cluster)
    trial = pool.trial(stream_class)
    device_of = [[0] * graph.stages for _ in range(count)]
    device = 0
    for block in range(graph.blocks):
        placed = 0
        while placed < graph.passes * count:
            room = _room(trial, device, block, graph.passes * count - placed, limit)
            if not room:
                device += 1
                if device == pool.devices:
                    return None
                continue
            trial.put(device, [block] * room)
            for task in range(placed, placed + room):
                step, stream = divmod(task, count)
                device_of[stream][graph.stage(step, block)] = device
            placed += room
    trial.device_of = device_of[0]
    pool.keep('stream-0', trial)
    trial.tenant.streams = count
    for number, devices in enumerate(device_of):
        pool.placed[f'stream-{number}'] = tuple(devices)
        pool.class_of[f'stream-{number}'] = stream_class.key
    return pool


def _room(trial: Trial, device: int, block: int, wanted: int, limit: float) -> int:
    """Most tasks of a block, up to ``wanted``, that a device has room for."""
    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if (trial.fits(device, block, middle) and trial.utilisation[device]
                + trial.added_utilisation(device, block, middle) <= limit):
            low = middle
        else:
            high = middle - 1
    return low


def within_response(cluster: Cluster, stream_class: StreamClass, max_response_us: int
                    ) -> tuple[Pool, PoolSchedule | None]:
    """The most streams, with their schedule, that all answer within a limit.

    Smaller batches answer sooner and cost more, so batches of 1, 2, 4, ... are tried; for each, the
    most streams that wrap-around can schedule within the limit.
    """
    best: tuple[Pool, PoolSchedule | None] = (Pool(cluster), None)
    for size in _halvings(stream_class.profile.max_batch):
        smaller = StreamClass(stream_class.profile.with_max_batch(size), stream_class.period_us)
        low, high = len(best[0].placed), int(upper_bound(cluster, smaller))
        while low < high:
            middle = (low + high + 1) // 2
            pool = wrap(cluster, smaller, middle)
            schedule = None if pool is None else pool_schedule(pool)
            if (pool is not None and schedule is not None
                    and max(schedule.response_us.values()) <= max_response_us):
                best, low = (pool, schedule), middle
            else:
                high = middle - 1
    return best


def _halvings(size: int) -> list[int]:
    """``size``, its half, ... 1."""
    return [size] if size == 1 else [size, *_halvings(size // 2)]
