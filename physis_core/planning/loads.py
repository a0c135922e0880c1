"""What a plan asks of each device in one period: batches, time, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from physis_core.planning.plan import Plan
from physis_core.planning.profile import Profile

StageTime = Callable[[int, int], int]
"""Time of a stage [us] from (block, batch)."""


@dataclass(frozen=True)
class StepBatch:
    """Stages of one block that a device runs in one call, each on another chunk."""

    device: int
    block: int
    steps: tuple[int, ...]


def step_batches(plan: Plan, max_batch: int) -> list[StepBatch]:
    """The batches of one period: per device and block, its steps in runs of the largest batch."""
    size = min(plan.batch.max_batch, max_batch) if plan.batch.across_steps else 1
    batches = []
    for device in range(plan.devices):
        steps_of: dict[int, list[int]] = {}
        for stage in plan.stages_on(device):
            step, block = plan.graph.step_block(stage)
            steps_of.setdefault(block, []).append(step)
        for block, steps in sorted(steps_of.items()):
            batches += [StepBatch(device, block, tuple(steps[first:first + size]))
                        for first in range(0, len(steps), size)]
    return batches


def device_loads_us(batches: Sequence[StepBatch], devices: int, stage_us: StageTime) -> list[int]:
    """Time each device is busy in one period [us]."""
    loads = [0] * devices
    for batch in batches:
        loads[batch.device] += stage_us(batch.block, len(batch.steps))
    return loads


def device_bytes(plan: Plan, profile: Profile, reserve_bytes: int) -> tuple[int, ...]:
    """Weights and KV of each device, and what activations and workspace need beyond the reserve."""
    sizes = []
    for device in range(plan.devices):
        weights = sum(profile.group_of(block).weight_bytes for block in plan.blocks_on(device))
        kv = sum(profile.group_of(stage % plan.graph.blocks).kv_bytes
                 for stage in plan.stages_on(device))
        sizes.append(weights + kv + beyond_reserve(profile, plan.batch.max_batch, reserve_bytes))
    return tuple(sizes)


def beyond_reserve(profile: Profile, max_batch: int, reserve_bytes: int) -> int:
    """Bytes of activations and workspace that the reserve does not cover."""
    activations = max_batch * max(group.activation_bytes for group in profile.groups)
    return max(0, profile.workspace_bytes + activations - reserve_bytes)
