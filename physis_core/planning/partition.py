"""Cutting the stages of one stream into devices.

Stages are walked in one of two orders, and each device takes as many as fit under a target load and
into its memory; the least target that works is found by bisection.  Then local search moves single
stages off the heaviest device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from physis_core.planning.profile import Profile

_MOVES = 200


@dataclass(frozen=True)
class Capacity:
    """What one device offers one stream: bytes, per device, for weights and KV."""

    memory_bytes: tuple[int, ...]


class Partition:
    """The stages of a stream on devices: which, how loaded, how full.

    Stages of a block that are in the same ``section`` of steps share calls; a call holds at most
    ``max_batch``.
    """

    def __init__(self, profile: Profile, section_of: Sequence[int], max_batch: int,
                 capacity: Capacity) -> None:
        self.profile = profile
        self.devices = len(capacity.memory_bytes)
        self.device_of = [-1] * profile.graph.stages
        self.load_us = [0] * self.devices
        self.free_bytes = list(capacity.memory_bytes)
        self._section_of = section_of
        self._max_batch = max_batch
        self._tasks: list[dict[tuple[int, int], int]] = [{} for _ in range(self.devices)]
        self._blocks: list[dict[int, int]] = [{} for _ in range(self.devices)]

    def added_us(self, stage: int, device: int, delta: int = 1) -> int:
        """Change of a device's load [us] if it took (or, at -1, gave up) a stage."""
        key = self._key(stage)
        tasks = self._tasks[device].get(key, 0)
        return self._time(key[0], tasks + delta) - self._time(key[0], tasks)

    def added_bytes(self, stage: int, device: int) -> int:
        """Weights and KV that a device would need for a stage."""
        block = stage % self.profile.graph.blocks
        group = self.profile.group_of(block)
        held = block in self._blocks[device]
        return group.kv_bytes + (0 if held else group.weight_bytes)

    def put(self, stage: int, device: int) -> None:
        """Place a stage that is nowhere."""
        self.free_bytes[device] -= self.added_bytes(stage, device)
        self.load_us[device] += self.added_us(stage, device)
        key = self._key(stage)
        self._tasks[device][key] = self._tasks[device].get(key, 0) + 1
        self._blocks[device][key[0]] = self._blocks[device].get(key[0], 0) + 1
        self.device_of[stage] = device

    def take(self, stage: int) -> int:
        """Remove a stage; returns the device it was on."""
        device = self.device_of[stage]
        self.load_us[device] += self.added_us(stage, device, -1)
        key = self._key(stage)
        self._tasks[device][key] -= 1
        self._blocks[device][key[0]] -= 1
        if not self._blocks[device][key[0]]:
            del self._blocks[device][key[0]]
        self.free_bytes[device] += self.added_bytes(stage, device)
        self.device_of[stage] = -1
        return device

    def _key(self, stage: int) -> tuple[int, int]:
        step, block = self.profile.graph.step_block(stage)
        return block, self._section_of[step]

    def _time(self, block: int, tasks: int) -> int:
        full, rest = divmod(tasks, self._max_batch)
        return (full * self.profile.mean_us(block, self._max_batch)
                + (self.profile.mean_us(block, rest) if rest else 0))


def block_major(profile: Profile, section_of: Sequence[int]) -> list[int]:
    """Stages block after block: few copies of the weights."""
    graph = profile.graph
    return [graph.stage(step, block) for block in range(graph.blocks)
            for step in range(graph.passes)]


def section_major(profile: Profile, section_of: Sequence[int]) -> list[int]:
    """Stages section after section, block after block in each: the way of a chunk."""
    graph = profile.graph
    return [graph.stage(step, block) for section in sorted(set(section_of))
            for block in range(graph.blocks)
            for step in range(graph.passes) if section_of[step] == section]


def partition(profile: Profile, order: Sequence[int], section_of: Sequence[int], max_batch: int,
              capacity: Capacity) -> Partition | None:
    """Stages in ``order`` on the devices at the least heaviest load; None: they do not fit."""
    low, high = 1, sum(profile.mean_us(stage % profile.graph.blocks, 1) for stage in order)
    best = _filled(profile, order, section_of, max_batch, capacity, high)
    while best is not None and low < high:
        middle = (low + high) // 2
        found = _filled(profile, order, section_of, max_batch, capacity, middle)
        if found is None:
            low = middle + 1
        else:
            best, high = found, max(found.load_us)
    if best is not None:
        _relieve(best)
    return best


def _filled(profile: Profile, order: Sequence[int], section_of: Sequence[int], max_batch: int,
            capacity: Capacity, target_us: int) -> Partition | None:
    """Device after device, each filled up to the target."""
    result = Partition(profile, section_of, max_batch, capacity)
    device = 0
    for stage in order:
        while (result.load_us[device] + result.added_us(stage, device) > target_us
               or result.added_bytes(stage, device) > result.free_bytes[device]):
            device += 1
            if device == result.devices:
                return None
        result.put(stage, device)
    return result


def _relieve(result: Partition) -> None:
    """Move single stages off the heaviest device while that lowers the heaviest load."""
    for _ in range(_MOVES):
        heaviest = max(range(result.devices), key=lambda device: result.load_us[device])
        move = min(_moves(result, heaviest), default=None)
        if move is None:
            return
        _, stage, receiver = move
        result.take(stage)
        result.put(stage, receiver)


def _moves(result: Partition, heaviest: int) -> Iterator[tuple[int, int, int]]:
    """Moves that help, as (the higher load of the two devices after it, stage, receiver)."""
    before = result.load_us[heaviest]
    stages = [stage for stage, device in enumerate(result.device_of) if device == heaviest]
    for stage in stages:
        left = before + result.added_us(stage, heaviest, -1)
        if left >= before:
            continue
        for receiver in range(result.devices):
            if receiver == heaviest:
                continue
            after = result.load_us[receiver] + result.added_us(stage, receiver)
            fits = result.added_bytes(stage, receiver) <= result.free_bytes[receiver]
            if after < before and fits:
                yield max(left, after), stage, receiver
