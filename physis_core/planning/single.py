"""Plans for one stream: the published modes and a general search, as a front of choices.

The search varies into which sections the steps are divided (a section is one batch), in which
order they are laid out (block after block, or section after section), and where the layout is cut
into devices.  Each candidate gets a timetable; where a walk through the blocks just misses a whole
number of periods, a slightly longer period with a shorter response is a candidate too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from physis_core.errors import InputError, PlanError
from physis_core.graph import KVMode
from physis_core.planning.bound import dependency_bound_us, lower_bound_us
from physis_core.planning.cluster import GB, Cluster
from physis_core.planning.loads import beyond_reserve, device_bytes, device_loads_us, step_batches
from physis_core.planning.modes import MODES
from physis_core.planning.partition import block_major, partition, section_major, sections_of
from physis_core.planning.plan import BatchRule, Plan, Prediction, ranks_from_devices
from physis_core.planning.profile import Profile
from physis_core.planning.slo import SLO
from physis_core.planning.timetable import Timetable, timetable

_PATIENCE = 2
"""Periods for which a chunk that enters waits for its batch; one that entered alone would meet it
no more, and run alone through all blocks."""
_LAYOUTS = {'by_block': block_major, 'by_step': section_major}


@dataclass(frozen=True)
class Candidate:
    """A complete plan and the timetable its prediction comes from.

    Attributes:
        plan: what the engine runs.
        table: when each batch of a period runs.
        on_front: whether no other candidate is at least as good in period and response.
    """

    plan: Plan
    table: Timetable
    on_front: bool = False

    @property
    def prediction(self) -> Prediction:
        """What is expected of the plan."""
        if self.plan.prediction is None:
            raise PlanError(f'plan `{self.plan.mode}` has no prediction; make it with a planner')
        return self.plan.prediction

    @property
    def batch(self) -> int:
        """Largest batch of the timetable."""
        return max(len(slot.batch.steps) for slot in self.table.slots)


Confirm = Callable[[Candidate], 'Candidate | None']
"""Executes a plan that was found and returns it with what was seen; None: it does not hold."""


def plan_single_stream(profile: Profile, cluster: Cluster, slo: SLO | None = None,
                       confirm: Confirm | None = None) -> list[Candidate]:
    """The named modes and the Pareto front of (period, response), shortest period first.

    Raises:
        InputError: the model does not fit into the memory, or no plan meets the SLO.
    """
    found = [candidate for plan in _plans(profile, cluster)
             for candidate in _timed(plan, profile, cluster, slo)]
    if not found:
        raise _does_not_fit(profile, cluster)
    if confirm is not None:
        likely = [one for one in _mark_front(found) if one.plan.mode not in MODES]
        found = [one for one in found if one.plan.mode in MODES]
        found += [seen for seen in map(confirm, likely) if seen is not None]
    marked = _mark_front(found)
    return marked if slo is None else _within(marked, slo, profile)


def best_period(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate with the shortest period, the shorter response among equals."""
    return min(candidates, key=_times)


# -- candidates --------------------------------------------------------------------------------


def _plans(profile: Profile, cluster: Cluster) -> Iterator[Plan]:
    devices = len(cluster.devices)
    for mode in MODES.values():
        yield mode(profile.graph, devices)
    graph = profile.graph
    batched = graph.kv_mode is KVMode.SAME_STEP
    for sections in sections_of(graph.passes, profile.max_batch if batched else 1):
        batch = max(map(len, sections))
        extra_bytes = beyond_reserve(profile, batch, cluster.reserve_bytes)
        memory = [device.memory_bytes - extra_bytes for device in cluster.devices]
        for name, layout in _LAYOUTS.items():
            cut = partition(profile, layout(graph.blocks, sections), memory)
            if cut is not None:
                yield Plan(f'{name}_{"-".join(str(len(steps)) for steps in sections)}', graph,
                           ranks_from_devices(cut.device_of()),
                           batch=BatchRule(batch, across_steps=batch > 1), max_in_flight=2)


def _timed(plan: Plan, profile: Profile, cluster: Cluster, slo: SLO | None
           ) -> Iterator[Candidate]:
    """A plan with its prediction, and again at a period that closes a round."""
    sizes = device_bytes(plan, profile, cluster.reserve_bytes)
    if any(size > device.memory_bytes
           for size, device in zip(sizes, cluster.devices, strict=False)):
        return
    batches = step_batches(plan, profile.max_batch)

    def hop_us(sender: int, receiver: int) -> int:
        return cluster.hop_us(sender, receiver, profile.hop_bytes)

    def table(period_us: int, dense: bool = False) -> Timetable:
        return timetable(plan.graph, batches, profile.mean_us, hop_us, period_us, dense)

    try:
        tables = [table(dependency_bound_us(profile))]
        first = tables[0]
        rounds = first.round_us // first.period_us
        if plan.batch.across_steps and rounds and first.round_us % first.period_us:
            tables.append(table(-(-first.round_us // rounds)))
        heaviest_us = max(device_loads_us(batches, plan.devices, profile.mean_us))
        if plan.graph.kv_mode is KVMode.SAME_STEP and first.period_us > heaviest_us:
            tables.append(table(heaviest_us, dense=True))
    except PlanError:
        return
    for each in tables:
        yield Candidate(_predicted(plan, each, profile, sizes, slo, len(cluster.devices)), each)


def _predicted(plan: Plan, table: Timetable, profile: Profile, sizes: tuple[int, ...],
               slo: SLO | None, devices: int) -> Plan:
    batches = [slot.batch for slot in table.slots]
    mean = max(device_loads_us(batches, plan.devices, profile.mean_us))
    p99 = max(device_loads_us(batches, plan.devices, profile.p99_us))
    period_p99_us = -(-table.period_us * p99 // mean)
    prediction = Prediction(
        period_us=table.period_us,
        response_us=table.response_us,
        period_p99_us=period_p99_us,
        lower_bound_us=int(lower_bound_us(profile, devices)),
        device_bytes=sizes,
        margin=0.0 if slo is None else 1 - period_p99_us / slo.period_us)
    order = tuple(
        tuple(plan.graph.stage(step, slot.batch.block)
              for slot in sorted(table.slots, key=lambda slot: slot.start_us)
              if slot.batch.device == device for step in reversed(slot.batch.steps))
        for device in range(plan.devices))
    # The last stage's end frees a place at the very moment at which the next chunk enters.
    last_end_us = table.start_us[-1] + table.slots[-1].length_us
    in_flight = -(-last_end_us // table.period_us) + (plan.max_in_flight > 1)
    rule = plan.batch
    if plan.mode not in MODES and rule.across_steps:  # who enters joins a batch that comes round
        rule = replace(rule, wait_us=_PATIENCE * table.period_us)
    return replace(plan, prediction=prediction, order=order, period_us=table.period_us,
                   max_in_flight=in_flight, batch=rule)


# -- choice ------------------------------------------------------------------------------------


def _times(candidate: Candidate) -> tuple[int, int]:
    return candidate.table.period_us, candidate.prediction.response_us


def _preference(candidate: Candidate) -> tuple[int, int, int, bool]:
    return (*_times(candidate), candidate.plan.weight_copies(), candidate.plan.mode not in MODES)


def _mark_front(found: Sequence[Candidate]) -> list[Candidate]:
    """Those that nothing dominates, and the fastest of each named mode, by period."""
    kept: list[Candidate] = []
    named: set[str] = set()
    fastest_us: int | None = None
    for candidate in sorted(found, key=_preference):
        mode, response_us = candidate.plan.mode, candidate.prediction.response_us
        on_front = fastest_us is None or response_us < fastest_us
        if on_front:
            fastest_us = response_us
        if on_front or (mode in MODES and mode not in named):
            kept.append(replace(candidate, on_front=on_front))
        named.add(mode)
    return kept


def _within(candidates: Sequence[Candidate], slo: SLO, profile: Profile) -> list[Candidate]:
    """Those that meet the SLO on p99 times."""
    fast = [one for one in candidates if one.prediction.period_p99_us <= slo.period_us]
    if not fast:
        nearest = min(one.prediction.period_p99_us for one in candidates)
        raise InputError(
            f'`{profile.model}`: no plan has a period of {slo.period_us / 1e3:g} ms or less; the '
            f'shortest found is {nearest / 1e3:g} ms; give more devices or a longer period')
    limit = slo.max_response_us
    prompt = [one for one in fast if limit is None or one.prediction.response_us <= limit]
    if not prompt:
        nearest = min(one.prediction.response_us for one in fast)
        raise InputError(
            f'`{profile.model}`: no plan of that period responds within {(limit or 0) / 1e3:g} ms; '
            f'the nearest responds in {nearest / 1e3:g} ms; allow that, or a longer period')
    return prompt


def _does_not_fit(profile: Profile, cluster: Cluster) -> InputError:
    graph = profile.graph
    kv = sum(profile.group_of(block).kv_bytes for block in range(graph.blocks)) * graph.passes
    weights = sum(profile.group_of(block).weight_bytes for block in range(graph.blocks))
    usable = sum(device.memory_bytes for device in cluster.devices)
    return InputError(
        f'`{profile.model}` needs {(kv + weights) / GB:.3g} GB ({weights / GB:.3g} GB of weights, '
        f'{kv / GB:.3g} GB of KV), and {len(cluster.devices)} device(s) offer {usable / GB:.3g} GB '
        f'in pieces of {cluster.devices[0].memory_bytes / GB:.3g} GB; give more devices, more '
        'memory, or a shorter window')
