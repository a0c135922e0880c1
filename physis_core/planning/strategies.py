"""Where a new stream goes on a pool that runs others.  Nobody is ever moved.

A strategy fills a trial and says whether it succeeded; on failure the trial is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from physis_core.planning.pool import FULL, Pool, StreamClass, Trial

Strategy = Callable[[Pool, StreamClass], 'Trial | None']

_DISCREPANCIES = 2
_NODES = 1500


def even_split(pool: Pool, stream_class: StreamClass) -> Trial | None:
    """Devices of its own: the fewest among which the stages can be split evenly."""
    empty = [device for device in range(pool.devices) if not any(
        tenant.busy_us[device] for tenant in pool.tenants.values())]
    graph = stream_class.profile.graph
    for count in range(1, min(len(empty), graph.stages) + 1):
        trial = pool.trial(stream_class)
        if _split_evenly(trial, empty[:count]):
            return trial
    return None


def _split_evenly(trial: Trial, devices: Sequence[int]) -> bool:
    graph = trial.profile.graph
    for block in range(graph.blocks):
        for step, stage in enumerate(trial.stages_of[block]):
            position = block * graph.passes + step
            device = devices[position * len(devices) // graph.stages]
            if not trial.fits(device, block):
                return False
            trial.put(device, (stage,))
    return True


def best_fit(pool: Pool, stream_class: StreamClass) -> Trial | None:
    """Each block (all its steps) on the device that it leaves with the least free memory."""
    return _search(pool, stream_class, discrepancies=0)


def best_fit_lds(pool: Pool, stream_class: StreamClass) -> Trial | None:
    """Best-Fit, and where it fails, Limited Discrepancy Search around it.

    A discrepancy is a block that goes to the device with the least *added* memory (one that has
    its weights) instead of the best fit.
    """
    for discrepancies in range(_DISCREPANCIES + 1):
        trial = _search(pool, stream_class, discrepancies)
        if trial is not None:
            return trial
    return None


def _search(pool: Pool, stream_class: StreamClass, discrepancies: int) -> Trial | None:
    trial = pool.trial(stream_class)
    budget = [_NODES]

    def place(block: int, left: int) -> bool:
        if block == trial.profile.graph.blocks:
            return True
        budget[0] -= 1
        if budget[0] < 0:
            return False
        stages = trial.stages_of[block]
        candidates = [(left_bytes, device) for device in range(pool.devices) if (
            left_bytes := trial.free_bytes[device] - trial.added_bytes(device, block, len(stages))
        ) >= 0 and trial.has_time(device, block, len(stages))]
        if not candidates:
            return False
        best = min(candidates)[1]
        choices = [best]
        if left:
            other = min(candidates, key=lambda candidate: (
                trial.added_bytes(candidate[1], block, len(stages)), -candidate[0]))[1]
            if other != best:
                choices.append(other)
        for index, device in enumerate(choices):
            trial.put(device, stages)
            if place(block + 1, left - (index > 0)):
                return True
            trial.take(device, stages)
        return False

    return trial if place(0, discrepancies) else None


def spread(pool: Pool, stream_class: StreamClass) -> Trial | None:
    """Over all devices in even groups by block, then into whatever fragments are left.

    Block l is at home on the devices that cover its share ``[l, l+1) / L`` of the pool, so every
    stream of a model meets the same weights there and at most L + G - 1 copies are held.  A task
    goes to the home, or other holder of its weights, that it leaves least used; where none has
    room, to the device with the least added memory that has.
    """
    trial = pool.trial(stream_class)
    for _ in _spread(trial, pool):
        return None
    return trial


def unplaced_blocks(pool: Pool, stream_class: StreamClass) -> list[int]:
    """The block of every stage that :func:`spread` finds no place for."""
    return list(_spread(pool.trial(stream_class), pool))


def unplaced_bytes(stream_class: StreamClass, blocks: Sequence[int]) -> int:
    """KV of stages of these blocks, and the weights of each block once."""
    return (sum(stream_class.kv_bytes[block] for block in blocks)
            + sum(stream_class.weight_bytes[block] for block in set(blocks)))


def _spread(trial: Trial, pool: Pool) -> Iterator[int]:
    """Place what can be placed; yields the block of every stage that cannot."""
    blocks = trial.profile.graph.blocks
    for block in range(blocks):
        first = block * pool.devices // blocks
        end = -(-(block + 1) * pool.devices // blocks)
        for stage in trial.stages_of[block]:
            device = _least_used(trial, block, range(first, end), pool)
            if device is None:
                holders = [device for device in range(pool.devices)
                           if trial.holds(device, block)]
                device = _least_used(trial, block, holders, pool)
            if device is None:
                device = _least_used(trial, block, range(pool.devices), pool)
            if device is None:
                yield block
            else:
                trial.put(device, (stage,))


def _least_used(trial: Trial, block: int, devices: Sequence[int], pool: Pool) -> int | None:
    """The device with room that is least used afterwards, by its scarcer resource."""
    best, lowest = None, 0.0
    for device in devices:
        free = trial.free_bytes[device] - trial.added_bytes(device, block)
        if free < 0:
            continue
        used = trial.utilisation[device] + trial.added_utilisation(device, block)
        if used > FULL:
            continue
        used = max(used, 1.0 - free / pool.cluster.devices[device].memory_bytes)
        if best is None or used < lowest:
            best, lowest = device, used
    return best


def portfolio(pool: Pool, stream_class: StreamClass) -> Trial | None:
    """The first of the strategies that finds a place: spread, Best-Fit, even split.

    The search of ``best_fit_lds`` is left out: it costs a hundred times as much and finds a place
    that ``spread`` does not find only where whole blocks no longer fit anywhere.
    """
    for strategy in (spread, best_fit, even_split):
        trial = strategy(pool, stream_class)
        if trial is not None:
            return trial
    return None


STRATEGIES: dict[str, Strategy] = {
    'even': even_split,
    'best_fit': best_fit,
    'best_fit_lds': best_fit_lds,
    'spread': spread,
    'portfolio': portfolio,
}
