"""Cutting the work of one stream into devices.

The unit is a block at a *section* of steps: steps of a section run as one batch wherever they are,
so chunks that meet in a batch stay together on their whole way.  (Cutting a section on one device
and not on another would load devices more evenly on paper, but the halves part there and meet no
more.)  Units are walked in order, and each device takes as many as fit under a target load and into
its memory; bisection finds the least target.  Local search then relieves the heaviest device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from physis_core.planning.profile import Profile

_MOVES = 200

Section = tuple[int, ...]


@dataclass(frozen=True)
class Unit:
    """A block at the steps of one section."""

    block: int
    steps: Section


def sections_of(passes: int, max_batch: int) -> list[tuple[Section, ...]]:
    """Divisions of the steps into runs of nearly equal length, at most ``max_batch`` long.

    Nearly equal, because a shorter run lets its chunks get out of step with those of a longer one.
    """
    cuts = [[passes * part // count for part in range(count + 1)]
            for count in range(-(-passes // max_batch), passes + 1)]
    return [tuple(tuple(range(first, end)) for first, end in pairwise(cut)) for cut in cuts]


def block_major(blocks: int, sections: Sequence[Section]) -> list[Unit]:
    """Block after block: few copies of the weights."""
    return [Unit(block, steps) for block in range(blocks) for steps in sections]


def section_major(blocks: int, sections: Sequence[Section]) -> list[Unit]:
    """Section after section, block after block in each: the way of a chunk."""
    return [Unit(block, steps) for steps in sections for block in range(blocks)]


class Partition:
    """Units on devices: how loaded, how full."""

    def __init__(self, profile: Profile, memory_bytes: Sequence[int]) -> None:
        self.units: list[list[Unit]] = [[] for _ in memory_bytes]
        self.load_us = [0] * len(memory_bytes)
        self._profile = profile
        self._memory_bytes = memory_bytes

    def length_us(self, unit: Unit) -> int:
        """Time of a unit [us]."""
        return self._profile.mean_us(unit.block, len(unit.steps))

    def fits(self, device: int, added: Unit, without: Unit | None = None) -> bool:
        """Whether a device has the memory for a unit, once it has given up another."""
        units = [unit for unit in self.units[device] if unit is not without] + [added]
        weights = sum(self._profile.group_of(block).weight_bytes
                      for block in {unit.block for unit in units})
        kv = sum(self._profile.group_of(unit.block).kv_bytes * len(unit.steps) for unit in units)
        return weights + kv <= self._memory_bytes[device]

    def put(self, unit: Unit, device: int) -> None:
        """Add a unit to a device."""
        self.units[device].append(unit)
        self.load_us[device] += self.length_us(unit)

    def take(self, unit: Unit, device: int) -> None:
        """Remove a unit from a device."""
        self.units[device].remove(unit)
        self.load_us[device] -= self.length_us(unit)

    def device_of(self) -> list[int]:
        """The device of each stage."""
        graph = self._profile.graph
        devices = [0] * graph.stages
        for device, units in enumerate(self.units):
            for unit in units:
                for step in unit.steps:
                    devices[graph.stage(step, unit.block)] = device
        return devices


def partition(profile: Profile, order: Sequence[Unit], memory_bytes: Sequence[int]
              ) -> Partition | None:
    """Units in ``order`` on devices at the least heaviest load; None: they do not fit."""
    lengths = [profile.mean_us(unit.block, len(unit.steps)) for unit in order]
    low = max(max(lengths), -(-sum(lengths) // len(memory_bytes)))
    high = sum(lengths)
    best = _filled(profile, order, memory_bytes, high)
    while best is not None and low < high:
        middle = (low + high) // 2
        found = _filled(profile, order, memory_bytes, middle)
        if found is None:
            low = middle + 1
        else:
            best, high = found, max(found.load_us)
    if best is not None:
        _relieve(best)
    return best


def _filled(profile: Profile, order: Sequence[Unit], memory_bytes: Sequence[int],
            target_us: int) -> Partition | None:
    """Device after device, each filled up to the target."""
    result = Partition(profile, memory_bytes)
    device = 0
    for unit in order:
        while (result.load_us[device] + result.length_us(unit) > target_us
               or not result.fits(device, unit)):
            device += 1
            if device == len(memory_bytes):
                return None
        result.put(unit, device)
    return result


def _relieve(result: Partition) -> None:
    """Move units off the heaviest device, or exchange them, while its load falls."""
    for _ in range(_MOVES):
        heaviest = max(range(len(result.load_us)), key=lambda device: result.load_us[device])
        best = min(_changes(result, heaviest), key=lambda change: change[0], default=None)
        if best is None:
            return
        _, unit, receiver, back = best
        result.take(unit, heaviest)
        result.put(unit, receiver)
        if back is not None:
            result.take(back, receiver)
            result.put(back, heaviest)


def _changes(result: Partition, heaviest: int) -> Iterator[tuple[int, Unit, int, Unit | None]]:
    """Changes that help: (higher load of the two afterwards, unit, receiver, what comes back)."""
    before = result.load_us[heaviest]
    lengths = {result.length_us(unit) for unit in result.units[heaviest]}
    for unit in result.units[heaviest]:
        length = result.length_us(unit)
        for receiver, load in enumerate(result.load_us):
            if receiver == heaviest or load + length - max(lengths) >= before:
                continue
            for back in (None, *result.units[receiver]):
                returned = 0 if back is None else result.length_us(back)
                after = max(before - length + returned, load + length - returned)
                if (after < before and result.fits(receiver, unit, back)
                        and (back is None or result.fits(heaviest, back, unit))):
                    yield after, unit, receiver, back
