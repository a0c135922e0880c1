"""A plan: which device holds which stages, what it may batch, and what follows from it.

A plan is a frozen value that can be written to disk.  The engine and the simulator execute the
same plan with the same dispatch code; there is no other notion of a "mode" anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

from physis_core.errors import InputError, PlanError
from physis_core.fields import from_mapping
from physis_core.graph import StageGraph

SCHEMA_VERSION = 1
MOST_DEVICES = 10_000
_MOST = {'slots_per_edge': 10_000, 'max_in_flight': 10 ** 6, 'period_us': 10 ** 12,
         'max_batch': 10_000}
LINK_KINDS = ('shm', 'gloo', 'gloo_pieces', 'nccl')


@dataclass(frozen=True)
class VirtualRank:
    """Stages of one stream that live together on a device, with their KV."""

    device: int
    stages: tuple[int, ...]


@dataclass(frozen=True)
class BatchRule:
    """What a device may run in one call.  Members always belong to the same block.

    Attributes:
        max_batch: most members of a batch.
        across_steps: whether members may be at different steps.
        across_streams: whether members may belong to different streams.
        wait_us: how long a chunk that enters may wait for company [us]; never past the slack of
            the tightest member.
    """

    max_batch: int = 1
    across_steps: bool = False
    across_streams: bool = True
    wait_us: int = 0


@dataclass(frozen=True)
class Prediction:
    """What the planner expects of a plan.  Times in microseconds, sizes in bytes.

    Attributes:
        period_us: interval between chunks (mean stage times).
        response_us: from a chunk's start to its output (mean stage times).
        period_p99_us: the interval that p99 stage times allow: what a deadline may rely on.
        lower_bound_us: LB(G), no plan on that many devices is faster.
        device_bytes: weights, KV and workspace, per device.
        margin: 1 - period_p99_us / allowed period, where a period was asked for.
    """

    period_us: int
    response_us: int
    period_p99_us: int = 0
    lower_bound_us: int = 0
    device_bytes: tuple[int, ...] = ()
    margin: float = 0.0


@dataclass(frozen=True)
class Plan:
    """How one stream of a model runs on a set of devices.

    Attributes:
        mode: a name for people; no code depends on it.
        graph: the stages that are placed.
        ranks: every stage of the graph, once, on a device.
        batch: what a device may batch.
        order: per device, its stages from first to last served among equally urgent tasks;
            empty: later stages first.  Only tasks that may start are chosen among, so that a plan
            makes progress with any order.
        slots_per_edge: places for waiting hidden states before a device that holds one stage; one
            that holds several takes in whatever arrives.
        max_in_flight: chunks of a stream that may be under way; the source waits beyond that.
        period_us: pace of the source [us]; 0: as fast as ``max_in_flight`` allows.
        link: how hidden states travel between devices.
        prediction: what the planner expects, if a planner made this plan.
    """

    mode: str
    graph: StageGraph
    ranks: tuple[VirtualRank, ...]
    batch: BatchRule = BatchRule()
    order: tuple[tuple[int, ...], ...] = ()
    slots_per_edge: int = 1
    max_in_flight: int = 1
    period_us: int = 0
    link: str = 'shm'
    prediction: Prediction | None = None
    _device_of: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, '_device_of', self._validated_placement())
        for name, low in (('slots_per_edge', 1), ('max_in_flight', 1), ('period_us', 0)):
            value = getattr(self, name)
            if value < low:
                raise PlanError(f'{name} is {value}; the least is {low}')
            if not value <= _MOST[name]:
                raise PlanError(f'{name} is {value}; the most is {_MOST[name]}')
        if not (1 <= self.batch.max_batch <= _MOST['max_batch']
                and 0 <= self.batch.wait_us <= _MOST['period_us']):
            raise PlanError(f'batch rule {self.batch}: max_batch goes from 1 to '
                            f'{_MOST["max_batch"]}, wait_us is at least 0')
        if self.link not in LINK_KINDS:
            raise PlanError(f'link `{self.link}` is not known; choose one of {LINK_KINDS}')
        for device, stages in enumerate(self.order):
            if sorted(stages) != sorted(self.stages_on(device)):
                raise PlanError(
                    f'order of device {device} lists stages {sorted(stages)}, but it holds '
                    f'{sorted(self.stages_on(device))}; list each of its stages once')

    def _validated_placement(self) -> tuple[int, ...]:
        device_of: dict[int, int] = {}
        for rank in self.ranks:
            if not 0 <= rank.device < MOST_DEVICES:
                raise PlanError(f'stages {rank.stages} are on device {rank.device}; '
                                f'devices are numbered from 0 to {MOST_DEVICES - 1}')
            for stage in rank.stages:
                if not 0 <= stage < self.graph.stages:
                    raise PlanError(f'stage {stage} on device {rank.device} does not exist; '
                                    f'the graph has stages 0 to {self.graph.stages - 1}')
                if stage in device_of:
                    raise PlanError(f'stage {stage} is on devices {device_of[stage]} and '
                                    f'{rank.device}; place it once')
                device_of[stage] = rank.device
        missing = [stage for stage in range(self.graph.stages) if stage not in device_of]
        if missing:
            raise PlanError(f'stage {missing[0]} is on no device '
                            f'({len(missing)} of {self.graph.stages} missing); place every stage')
        return tuple(device_of[stage] for stage in range(self.graph.stages))

    # -- reading -------------------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """One more than the highest device in use."""
        return max(self._device_of) + 1

    def device_of(self, stage: int) -> int:
        """The device that holds a stage."""
        return self._device_of[stage]

    def stages_on(self, device: int) -> list[int]:
        """The stages a device holds, ascending."""
        return [stage for stage, where in enumerate(self._device_of) if where == device]

    def blocks_on(self, device: int) -> list[int]:
        """The blocks whose weights a device needs, ascending."""
        return sorted({stage % self.graph.blocks for stage in self.stages_on(device)})

    def order_on(self, device: int) -> tuple[int, ...]:
        """The stages of a device from first to last served, also where ``order`` is empty."""
        stated = self.order[device] if device < len(self.order) else ()
        return stated or tuple(reversed(self.stages_on(device)))

    def edges(self) -> list[tuple[int, int]]:
        """Pairs (sender, receiver) of devices between which hidden states travel."""
        pairs = zip(self._device_of, self._device_of[1:], strict=False)
        return sorted({(a, b) for a, b in pairs if a != b})

    def kv_devices(self, step: int, block: int) -> list[int]:
        """The devices that keep the KV written at ``(step, block)``: those of its readers."""
        return sorted({self.device_of(self.graph.stage(reader, block))
                       for reader in self.graph.kv_reader_steps(step)})

    def weight_copies(self) -> int:
        """How many copies of a block's weights are held, summed over blocks."""
        return sum(len(self.blocks_on(device)) for device in range(self.devices))

    # -- writing -------------------------------------------------------------------------------

    def to_json(self) -> str:
        """JSON with a schema version."""
        data = asdict(self)
        del data['_device_of']
        return json.dumps({'schema': SCHEMA_VERSION, **data}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` wrote.

        Raises:
            PlanError: not JSON, another schema version, unknown or missing fields, or a plan
                that contradicts itself.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            schema = data.pop('schema')
            if schema != SCHEMA_VERSION:
                raise PlanError(f'plan has schema version {schema}, this is version '
                                f'{SCHEMA_VERSION}; make the plan again with `physis plan`')
            return cls._from_mapping(data)
        except PlanError:
            raise
        except InputError as error:
            raise PlanError(str(error)) from error
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise PlanError(f'this is not a plan ({type(error).__name__}: {error}); '
                            'make one with `physis plan`') from error

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a plan from disk.

        Raises:
            InputError: the file cannot be read.
            PlanError: see :meth:`from_json`.
        """
        try:
            return cls.from_json(path.read_text(encoding='utf-8'))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f'{path} cannot be read ({error}); write a plan with '
                             '`physis plan --out`') from error

    @classmethod
    def _from_mapping(cls, data: Mapping[str, Any]) -> Plan:
        fields = dict(data)
        fields['graph'] = from_mapping(StageGraph, fields['graph'], 'plan: `graph`')
        fields['ranks'] = tuple(from_mapping(VirtualRank, rank, 'plan: `ranks`')
                                for rank in fields['ranks'])
        fields['batch'] = from_mapping(BatchRule, fields['batch'], 'plan: `batch`')
        fields['order'] = tuple(tuple(stages) for stages in fields['order'])
        if fields['prediction'] is not None:
            fields['prediction'] = from_mapping(Prediction, fields['prediction'],
                                                'plan: `prediction`')
        return from_mapping(cls, fields, 'plan')


def ranks_from_devices(device_of: list[int]) -> tuple[VirtualRank, ...]:
    """Virtual ranks from a list that names the device of every stage."""
    ranks: dict[int, list[int]] = {}
    for stage, device in enumerate(device_of):
        ranks.setdefault(device, []).append(stage)
    return tuple(VirtualRank(device, tuple(stages)) for device, stages in sorted(ranks.items()))


def united_order(plans: Mapping[int, Plan], device: int) -> tuple[int, ...]:
    """How a device serves the stages of several plans, by slot: as each of them that says so.

    First served first; empty where none says anything: later stages first.

    Raises:
        PlanError: they contradict one another.
    """
    slot_of: dict[tuple[int, ...], int] = {}
    for slot, plan in plans.items():
        if device < len(plan.order):
            slot_of.setdefault(plan.order_on(device), slot)
    orders = list(slot_of)
    united = _merged(orders)
    if united is None:
        wrong = next(order for count, order in enumerate(orders, 1)
                     if _merged(orders[:count]) is None)
        raise PlanError(f'the plan of slot {slot_of[wrong]} serves the stages of device {device} '
                        f'in the order {wrong}, which contradicts the plans before it; give all '
                        'plans that share a device one order')
    return united


def _merged(orders: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """One order that keeps each of these; None: there is none."""
    before: TopologicalSorter[int] = TopologicalSorter()
    for order in orders:
        for stage in order:
            before.add(stage)
        for first, second in pairwise(order):
            before.add(second, first)
    try:
        return tuple(before.static_order())
    except CycleError:
        return None
