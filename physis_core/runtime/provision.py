"""What an engine sets aside at its start, so that streams come and go without a reallocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from physis_core.errors import InputError, PlanError, Refused
from physis_core.graph import StageGraph
from physis_core.planning.plan import BatchRule, Plan, united_order


@dataclass(frozen=True)
class DeviceProvision:
    """What one device holds from the start.

    Attributes:
        blocks: whose weights it has.
        kv_entries: histories (of one stream at one stage) that it has room for.
        order: its stages, first served first; empty: later stages first.
        single_stage: one stage lives here.
    """

    blocks: tuple[int, ...]
    kv_entries: int
    order: tuple[int, ...] = ()
    single_stage: bool = False


@dataclass(frozen=True)
class Provision:
    """Devices and places for streams.

    Attributes:
        graph: of the model.
        devices: what each holds.
        slots: how many streams there may be at a time.
        batch: what a device may batch, the same for all streams.
        in_flight: chunks of all streams together that may be under way.
        slots_per_edge: places between two devices that hold one stage each.
        link: how hidden states travel between devices.
        times_us: expected time of a stage [us] by block and batch (1 first), until it is measured;
            empty: nothing is known.
    """

    graph: StageGraph
    devices: tuple[DeviceProvision, ...]
    slots: int
    batch: BatchRule
    in_flight: int
    slots_per_edge: int = 1
    link: str = 'shm'
    times_us: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise InputError('an engine needs at least one stream slot; give a plan')
        if not self.devices:
            raise InputError('an engine needs at least one device')

    @classmethod
    def for_plans(cls, graph: StageGraph, plans: Sequence[Plan]) -> Provision:
        """Exactly what these plans need, one stream each.

        Raises:
            PlanError: a plan is for another graph, or the plans have different links, batch rules
                or orders, of which an engine has one.
        """
        for slot, plan in enumerate(plans):
            if plan.graph != graph:
                raise PlanError(f'the plan of slot {slot} is for {plan.graph}, the model has '
                                f'{graph}; plan for this model')
            if plan.link != plans[0].link:
                raise PlanError(f'the plan of slot {slot} has link `{plan.link}`, that of slot 0 '
                                f'`{plans[0].link}`; give all plans of an engine one link')
            if not _may_share(plan.batch, plans[0].batch):
                raise PlanError(f'the plan of slot {slot} has {plan.batch}, that of slot 0 '
                                f'{plans[0].batch}; give all plans of an engine one batch rule')
        if not plans:
            raise InputError('an engine needs at least one stream slot; give a plan')
        return cls(
            graph, tuple(_device_for(graph, plans, device)
                         for device in range(max(plan.devices for plan in plans))),
            slots=len(plans),
            batch=max((plan.batch for plan in plans), key=lambda rule: rule.wait_us),
            in_flight=sum(plan.max_in_flight for plan in plans),
            slots_per_edge=max(plan.slots_per_edge for plan in plans), link=plans[0].link)

    def check(self, plan: Plan) -> None:
        """Whether a plan can run here at all, however empty the devices are.

        Raises:
            PlanError: it is for another graph, or has another link, batch rule or order.
            Refused: it needs a device or weights that are not there.
        """
        if plan.graph != self.graph:
            raise PlanError(f'the plan is for {plan.graph}, the model has {self.graph}; plan for '
                            'this model')
        if plan.link != self.link:
            raise PlanError(f'the plan has link `{plan.link}`, the engine was started with '
                            f'`{self.link}`; give all its plans one link')
        if not _may_share(plan.batch, self.batch):
            raise PlanError(f'the plan has {plan.batch}, the engine was started with {self.batch}; '
                            'give all its plans one batch rule')
        if plan.devices > len(self.devices):
            raise Refused(f'the plan uses device {plan.devices - 1}, the engine has '
                          f'{len(self.devices)}; plan for these devices')
        for device in range(plan.devices):
            missing = set(plan.blocks_on(device)) - set(self.devices[device].blocks)
            if missing:
                raise Refused(f'the plan puts block {min(missing)} on device {device}, which holds '
                              f'the weights of blocks {list(self.devices[device].blocks)}; start '
                              'the engine with more weights there')
            self._check_order(plan, device)

    def _check_order(self, plan: Plan, device: int) -> None:
        if device >= len(plan.order):
            return
        served = self.devices[device].order or range(self.graph.stages - 1, -1, -1)
        wanted = plan.order_on(device)
        if tuple(stage for stage in served if plan.device_of(stage) == device) != wanted:
            raise PlanError(
                f'the plan serves the stages of device {device} in the order {wanted}, the engine '
                f'was started with {self.devices[device].order or "later stages first"}; give all '
                'its plans one order')


def _may_share(one: BatchRule, other: BatchRule) -> bool:
    """Whether an engine can keep both rules: patience is the most that any of its plans has."""
    return replace(one, wait_us=0) == replace(other, wait_us=0)


def kv_entries(graph: StageGraph, stages: Sequence[int]) -> int:
    """Histories that one stream with these stages keeps on a device."""
    return len({(graph.kv_source_step(step), block)
                for step, block in map(graph.step_block, stages)})


def _device_for(graph: StageGraph, plans: Sequence[Plan], device: int) -> DeviceProvision:
    stages = [plan.stages_on(device) for plan in plans]
    return DeviceProvision(
        blocks=tuple(sorted({stage % graph.blocks for own in stages for stage in own})),
        kv_entries=sum(kv_entries(graph, own) for own in stages),
        order=united_order(dict(enumerate(plans)), device),
        single_stage=len({stage for own in stages for stage in own}) == 1)
