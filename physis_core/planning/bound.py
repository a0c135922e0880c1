"""LB(G): the period that no plan on G devices can beat.

A period contains every stage once, in batches of one block each.  Work on G' devices needs at least
max(L, G') batches, so the load of the heaviest is at least W(G') / G', where W(G') is the least
time of all stages in that many batches.  For t(B) = a + b B this is
``max(t(1), (a max(L, min(G, S)) + b S) / min(G, S))``; measured times may bend, so W comes from
the times themselves.  Stages do not come in halves: on two devices the most even way to divide the
stages of all blocks is found exactly, and bounds the period too.  History that is written late (KV
modes other than ``same_step``) adds a bound of its own, whatever the number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from physis_core.errors import InputError
from physis_core.planning.profile import Profile

_GRAINS = 8192
"""The load of the first of two devices is counted in so many parts of the whole, rounded down."""


def lower_bound_us(profile: Profile, devices: int) -> float:
    """LB(G) of one stream, from mean stage times [us]."""
    if devices < 1:
        raise InputError(f'{devices} devices; give at least 1')
    graph = profile.graph
    tables = [table for group in profile.groups
              for table in [split_costs(group.times.mean_us, graph.passes)] * group.blocks]
    costs = [table[graph.passes] for table in tables]
    cheapest = [cost.index(min(cost)) for cost in costs]
    work = sum(cost[count] for cost, count in zip(costs, cheapest, strict=True))
    batches = sum(cheapest)
    extra = sorted(cost[count + 1] - cost[count]
                   for cost, least in zip(costs, cheapest, strict=True)
                   for count in range(least, graph.passes))
    loads = []
    for used in range(1, min(devices, graph.stages) + 1):
        if used > batches:
            work += extra[used - batches - 1]
        loads.append(work / used)
    bounds_us = [min(loads), dependency_bound_us(profile)]
    if devices == 2:
        bounds_us.append(_most_even_us([[min(row) for row in table] for table in tables]))
    return max(bounds_us)


def split_costs(times: Sequence[int], tasks: int) -> list[list[float]]:
    """Least time [us] of ``[0, 1, ... tasks]`` tasks of a block in exactly ``[0, 1, ...]`` batches.
    """
    best = [[inf] * (tasks + 1) for _ in range(tasks + 1)]  # [tasks][batches]
    best[0][0] = 0
    for done in range(1, tasks + 1):
        for batches in range(1, done + 1):
            best[done][batches] = min(
                best[done - size][batches - 1] + times[size - 1]
                for size in range(1, min(done, len(times)) + 1))
    return best


def _most_even_us(costs: Sequence[Sequence[float]]) -> float:
    """The least load [us] of the fuller of two devices, over all ways to divide the stages.

    ``costs[block][tasks]`` is the least time [us] of so many tasks of a block.
    """
    grain_us = sum(cost[-1] for cost in costs) / _GRAINS
    other_us = np.full(2 * _GRAINS, inf)  # least load of the second device, by that of the first
    other_us[0] = 0
    for cost in costs:
        before, other_us = other_us, np.full(len(other_us), inf)
        for tasks, load_us in enumerate(cost):
            shift = int(load_us / grain_us)
            if shift < len(before):
                other_us[shift:] = np.minimum(
                    other_us[shift:], before[:len(before) - shift] + cost[-1 - tasks])
    return float(np.maximum(np.arange(len(other_us)) * grain_us, other_us).min())


def dependency_bound_us(profile: Profile) -> int:
    """The period below which one stream's own history is not there in time [us].

    Task (c, d, l) waits for (c - 1, d', l), where d' is the step whose KV it reads: the chunk
    before has (d' - d) L + 1 stages to do in between.
    """
    graph = profile.graph
    stage_us = [profile.mean_us(block, 1) for block in range(graph.blocks)]
    if not graph.window_chunks:
        return max(stage_us)
    distance = max(graph.kv_source_step(step) - step for step in range(graph.steps))
    return distance * sum(stage_us) + max(stage_us)
