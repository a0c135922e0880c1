"""A pool of devices and the streams that have been placed on it.

State is whole numbers only, and everything else is computed from it, so a pool after a stream has
left is bit for bit the pool before it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from physis_core.errors import InputError
from physis_core.planning.bound import dependency_bound_us
from physis_core.planning.cluster import Cluster
from physis_core.planning.loads import beyond_reserve
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.planning.profile import Profile

FULL = 1.0 + 1e-9
"""Utilisation up to which a device takes work (the rest is for rounding of sums)."""

_SPARE_CHUNKS = 2  # in flight beyond those of an undisturbed response


@dataclass(frozen=True)
class StreamClass:
    """Streams that may share batches: the same model on the same device model, at one period.

    Attributes:
        profile: of the model.
        period_us: T, interval between its chunks.
        kv_bytes: history of one stream at one stage, by block.
        weight_bytes: by block.
    """

    profile: Profile
    period_us: int
    kv_bytes: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())
    weight_bytes: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())
    _busy_us: tuple[list[int], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        groups = [group for group in self.profile.groups for _ in range(group.blocks)]
        object.__setattr__(self, 'kv_bytes', tuple(group.kv_bytes for group in groups))
        object.__setattr__(self, 'weight_bytes', tuple(group.weight_bytes for group in groups))
        tables = {id(group): [0, *group.times.p99_us] for group in self.profile.groups}
        object.__setattr__(self, '_busy_us', tuple(tables[id(group)] for group in groups))
        slowest_us = max(group.times.p99_us[0] for group in self.profile.groups)
        if slowest_us > self.period_us:
            raise InputError(
                f'`{self.profile.model}`: a period of {self.period_us / 1e3:g} ms is shorter than '
                f'its slowest stage ({slowest_us / 1e3:g} ms at p99); ask for at least that')
        history_us = dependency_bound_us(self.profile)
        if history_us > self.period_us:
            raise InputError(
                f'`{self.profile.model}`: a period of {self.period_us / 1e3:g} ms is shorter than '
                f'the {history_us / 1e3:g} ms until its own history is written (KV mode '
                f'{self.profile.graph.kv_mode.value}); ask for at least that')

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells classes apart."""
        return self.profile.model, self.profile.device, self.period_us

    def busy_us(self, block: int, tasks: int) -> int:
        """Time of ``tasks`` tasks of a block in a period, in full batches and a rest [us]."""
        table = self._busy_us[block]
        while tasks >= len(table):  # one more full batch than what was known
            table.append(table[self.profile.max_batch] + table[-self.profile.max_batch])
        return table[tasks]


@dataclass
class Tenant:
    """One class on the pool: tasks of each block on each device, and their time there."""

    stream_class: StreamClass
    tasks: list[list[int]]  # [device][block]
    busy_us: list[int]  # [device]
    streams: int = 0

    def copy(self) -> Tenant:
        """One that can be changed on trial."""
        return Tenant(self.stream_class, [list(row) for row in self.tasks], list(self.busy_us),
                      self.streams)


@dataclass
class Pool:
    """Devices, and who is on them.

    Attributes:
        cluster: the devices.
        free_bytes: memory left on each.
        tenants: the classes that are there, by their key.
        placed: the device of each stage of every stream, by the stream's name.
        class_of: the class key of every stream.
    """

    cluster: Cluster
    free_bytes: list[int] = field(default_factory=list)
    tenants: dict[tuple[str, str, int], Tenant] = field(default_factory=dict)
    placed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    class_of: dict[str, tuple[str, str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free_bytes = [device.memory_bytes for device in self.cluster.devices]

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.free_bytes)

    def utilisation(self, device: int) -> float:
        """Share of a device's time that is promised."""
        return sum(tenant.busy_us[device] / tenant.stream_class.period_us
                   for _, tenant in sorted(self.tenants.items()))

    def trial(self, stream_class: StreamClass) -> Trial:
        """A placement of one stream in the making; the pool does not change until it is kept."""
        return Trial(self, stream_class)

    def idle(self) -> Pool:
        """A copy in which no device's time is taken: what memory alone would allow."""
        copy = Pool(self.cluster, tenants={
            key: Tenant(tenant.stream_class, tenant.tasks, [0] * self.devices, tenant.streams)
            for key, tenant in self.tenants.items()})
        copy.free_bytes = list(self.free_bytes)
        return copy

    def keep(self, name: str, trial: Trial) -> None:
        """Admit the stream of a complete trial made on the pool as it is now."""
        if name in self.placed:
            raise InputError(f'stream `{name}` is in the pool already; choose another name')
        trial.tenant.streams += 1
        self.free_bytes = trial.free_bytes
        self.tenants[trial.tenant.stream_class.key] = trial.tenant
        self.placed[name] = tuple(trial.device_of)
        self.class_of[name] = trial.tenant.stream_class.key

    def remove(self, name: str) -> None:
        """Give back everything a stream has."""
        if name not in self.placed:
            raise InputError(f'stream `{name}` is not in the pool; it holds '
                             f'{len(self.placed)} others')
        key = self.class_of.pop(name)
        tenant = self.tenants[key]
        profile = tenant.stream_class.profile
        for stage, device in enumerate(self.placed.pop(name)):
            block = stage % profile.graph.blocks
            tasks = tenant.tasks[device][block]
            tenant.tasks[device][block] = tasks - 1
            tenant.busy_us[device] += (tenant.stream_class.busy_us(block, tasks - 1)
                                       - tenant.stream_class.busy_us(block, tasks))
            self.free_bytes[device] += tenant.stream_class.kv_bytes[block]
            if tasks == 1 and not self._held_by_another(key, device, block):
                self.free_bytes[device] += tenant.stream_class.weight_bytes[block]
        tenant.streams -= 1
        if not tenant.streams:
            for device in range(self.devices):
                self.free_bytes[device] += self.runtime_bytes(tenant.stream_class)
            del self.tenants[key]

    def plan(self, name: str) -> Plan:
        """How a placed stream runs: the plan that engine and simulator execute."""
        stream_class = self.tenants[self.class_of[name]].stream_class
        profile, graph = stream_class.profile, stream_class.profile.graph
        response_us = graph.passes * sum(
            profile.mean_us(block, profile.max_batch) for block in range(graph.blocks))
        return Plan(
            'pool', graph, ranks_from_devices(list(self.placed[name])),
            batch=BatchRule(profile.max_batch, across_steps=True),
            max_in_flight=_SPARE_CHUNKS + -(-response_us // stream_class.period_us),
            period_us=stream_class.period_us)

    def runtime_bytes(self, stream_class: StreamClass) -> int:
        """What a class takes on every device for activations beyond the cluster's reserve."""
        profile = stream_class.profile
        return beyond_reserve(profile, profile.max_batch, self.cluster.reserve_bytes)

    def _held_by_another(self, key: tuple[str, str, int], device: int, block: int) -> bool:
        return any(tenant.tasks[device][block] > 0 for other, tenant in self.tenants.items()
                   if other[:2] == key[:2] and other != key)


class Trial:
    """Stages of one new stream being placed, on copies of what they touch.

    ``stages_of`` lists the stages of each block, ``device_of`` says where a stage is (-1: nowhere).
    """

    def __init__(self, pool: Pool, stream_class: StreamClass) -> None:
        profile = stream_class.profile
        self.profile = profile
        self.stages_of = [[profile.graph.stage(step, block) for step in range(profile.graph.passes)]
                          for block in range(profile.graph.blocks)]
        self.free_bytes = list(pool.free_bytes)
        self.device_of = [-1] * profile.graph.stages
        key = stream_class.key
        known = pool.tenants.get(key)
        if known is not None:
            self.tenant = known.copy()
        else:
            runtime_bytes = pool.runtime_bytes(stream_class)
            self.free_bytes = [free - runtime_bytes for free in self.free_bytes]
            self.tenant = Tenant(stream_class,
                                 [[0] * profile.graph.blocks for _ in self.free_bytes],
                                 [0] * pool.devices)
        self.utilisation = [pool.utilisation(device) for device in range(pool.devices)]
        self._pool = pool
        self._key = key
        self._shared = [other for name, other in pool.tenants.items()
                        if name[:2] == key[:2] and name != key]

    def added_bytes(self, device: int, block: int, tasks: int = 1) -> int:
        """Memory that ``tasks`` more tasks of a block need on a device."""
        stream_class = self.tenant.stream_class
        added = tasks * stream_class.kv_bytes[block]
        return added if self.holds(device, block) else added + stream_class.weight_bytes[block]

    def added_utilisation(self, device: int, block: int, tasks: int = 1) -> float:
        """Share of a device's time that they need."""
        there = self.tenant.tasks[device][block]
        stream_class = self.tenant.stream_class
        return (stream_class.busy_us(block, there + tasks) - stream_class.busy_us(block, there)
                ) / stream_class.period_us

    def holds(self, device: int, block: int) -> bool:
        """Whether the weights of a block are on a device."""
        if self.tenant.tasks[device][block]:
            return True
        return bool(self._shared) and any(other.tasks[device][block] for other in self._shared)

    def fits(self, device: int, block: int, tasks: int = 1) -> bool:
        """Whether a device has the memory and the time."""
        return (self.added_bytes(device, block, tasks) <= self.free_bytes[device]
                and self.has_time(device, block, tasks))

    def has_time(self, device: int, block: int, tasks: int = 1) -> bool:
        """Whether a device has the time."""
        return self.utilisation[device] + self.added_utilisation(device, block, tasks) <= FULL

    def put(self, device: int, stages: Sequence[int]) -> None:
        """Place stages of one block."""
        block = stages[0] % self.profile.graph.blocks
        count = len(stages)
        stream_class = self.tenant.stream_class
        self.free_bytes[device] -= self.added_bytes(device, block, count)
        self.utilisation[device] += self.added_utilisation(device, block, count)
        there = self.tenant.tasks[device][block]
        self.tenant.busy_us[device] += (stream_class.busy_us(block, there + count)
                                        - stream_class.busy_us(block, there))
        self.tenant.tasks[device][block] = there + count
        for stage in stages:
            self.device_of[stage] = device

    def take(self, device: int, stages: Sequence[int]) -> None:
        """Undo :meth:`put`."""
        block = stages[0] % self.profile.graph.blocks
        count = len(stages)
        stream_class = self.tenant.stream_class
        there = self.tenant.tasks[device][block]
        self.tenant.tasks[device][block] = there - count
        self.tenant.busy_us[device] += (stream_class.busy_us(block, there - count)
                                        - stream_class.busy_us(block, there))
        self.free_bytes[device] += self.added_bytes(device, block, count)
        self.utilisation[device] -= self.added_utilisation(device, block, count)
        for stage in stages:
            self.device_of[stage] = -1
