"""The published ways of running a denoising model, as plans.

They differ in where stages live and what is batched, nothing else.  With t(B) the time of one
stage at batch B, their periods on enough devices are: sequential S*t(1), Wave Forcing L*t(1),
StreamDiffusionV2 t(D) a block, full split t(1).
"""

from __future__ import annotations

from collections.abc import Callable

from physis_core.errors import PlanError
from physis_core.graph import StageGraph
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices


def sequential(graph: StageGraph, devices: int = 1) -> Plan:
    """One chunk at a time, stage after stage, on the first device."""
    _require(devices, graph)
    return Plan('sequential', graph, ranks_from_devices([0] * graph.stages))


def wave(graph: StageGraph, devices: int) -> Plan:
    """Wave Forcing: one step (all its blocks) on a device; steps share devices in even runs."""
    _require(devices, graph)
    used = min(devices, graph.passes)
    device_of = [(stage // graph.blocks) * used // graph.passes for stage in range(graph.stages)]
    return Plan('wave', graph, ranks_from_devices(device_of), max_in_flight=graph.passes)


def streamdiffusionv2(graph: StageGraph, devices: int) -> Plan:
    """StreamDiffusionV2: a range of blocks on a device, all steps of a block in one batch.

    One chunk more than the batches hold may be in flight: it waits at the entrance, the least
    urgent of all, and joins the batch that the chunk just finished has left.
    """
    _require(devices, graph)
    used = min(devices, graph.blocks)
    device_of = [(stage % graph.blocks) * used // graph.blocks for stage in range(graph.stages)]
    return Plan(
        'streamdiffusionv2', graph, ranks_from_devices(device_of),
        batch=BatchRule(max_batch=graph.passes, across_steps=True),
        max_in_flight=graph.passes * used + 1)


def full_split(graph: StageGraph, devices: int) -> Plan:
    """One stage on a device; with fewer devices, even runs of consecutive stages."""
    _require(devices, graph)
    used = min(devices, graph.stages)
    device_of = [stage * used // graph.stages for stage in range(graph.stages)]
    return Plan('full_split', graph, ranks_from_devices(device_of), max_in_flight=2 * used)


MODES: dict[str, Callable[[StageGraph, int], Plan]] = {
    'sequential': sequential,
    'wave': wave,
    'streamdiffusionv2': streamdiffusionv2,
    'full_split': full_split,
}


def _require(devices: int, graph: StageGraph) -> None:
    if devices < 1:
        raise PlanError(f'{devices} devices for {graph.stages} stages; give at least 1')
