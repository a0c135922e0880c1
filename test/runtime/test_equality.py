"""Every plan computes what the sequential oracle computes: bit for bit without batching."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from batches import formed
from replay import Recorded, largest_error, tiny

from physis_core.graph import KVMode, StageGraph
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import MODES
from physis_core.planning.plan import BatchRule, Plan
from physis_core.runtime.engine import Engine, StreamOptions

DEVICES = (1, 2, 3, 5, 8)
EIGHT_STAGES = {'steps': 2, 'blocks': 4}  # so that a stage can be alone on each of them
CHUNKS = 9  # more than the window, so that the ring goes round
BATCHED_TOLERANCE = 2e-5
"""Batched matrix products add in another order; outputs are in [-1, 1]."""


def every_plan(graph: StageGraph) -> list[Plan]:
    """Each mode on each number of devices, those that come out the same once."""
    plans: list[Plan] = []
    for mode in MODES.values():
        for devices in DEVICES:
            plan = mode(graph, devices)
            if plan not in plans:
                plans.append(plan)
    assert {plan.devices for plan in plans} >= {*DEVICES}
    return plans


def unbatched(plan: Plan) -> Plan:
    return replace(plan, batch=BatchRule())


def run_all(spec: ModelSpec, plans: list[Plan]) -> Iterator[tuple[Plan, float]]:
    """Run all plans at the same time, one stream each, on one set of devices.

    Batches form, and of unlike histories, exactly where the plans allow any.
    """
    description = describe(spec)
    with Engine(spec, plans) as engine:
        streams = [Recorded(engine.open_stream(StreamOptions(seed=slot, lead_ns=40_000_000)),
                            description, seed=slot) for slot in range(len(plans))]
        taken: list[list] = [[] for _ in streams]
        for recorded in streams:
            recorded.observe()
        for _ in range(CHUNKS):
            for recorded, chunks in zip(streams, taken, strict=True):
                chunks.append(recorded.chunk())
                recorded.observe()
        for plan, recorded, chunks in zip(plans, streams, taken, strict=True):
            yield plan, largest_error(spec, recorded, chunks)
        seen = formed(engine, description.graph)
        may_batch = plans[0].batch.max_batch > 1
        assert (seen.largest > 1, seen.mixed > 0) == (may_batch, may_batch)


@pytest.mark.parametrize('sinks', [0, 1])
@pytest.mark.parametrize('kv_mode', list(KVMode))
def test_every_mode_on_every_number_of_devices_is_the_oracle_bit_for_bit(
        kv_mode: KVMode, sinks: int) -> None:
    spec = tiny(kv_mode=kv_mode.value, sinks=sinks, **EIGHT_STAGES)
    plans = [unbatched(plan) for plan in every_plan(describe(spec).graph)]
    for plan, error in run_all(spec, plans):
        assert error == 0.0, (plan.mode, plan.devices)


@pytest.mark.parametrize('kv_mode', list(KVMode))
def test_batching_across_steps_chunks_and_streams_stays_within_rounding(kv_mode: KVMode) -> None:
    spec = tiny(kv_mode=kv_mode.value, sinks=1, **EIGHT_STAGES)
    rule = BatchRule(max_batch=6, across_steps=True)
    plans = [replace(plan, batch=rule) for plan in every_plan(describe(spec).graph)]
    for plan, error in run_all(spec, plans):
        assert error <= BATCHED_TOLERANCE, (plan.mode, plan.devices)


def test_no_window_prompt_renoise_and_several_latents() -> None:
    for options in ({'window': 0}, {'renoise': True}, {'latents': 3}, {'steps': 1, 'blocks': 8}):
        spec = tiny(**options)
        plans = [unbatched(mode(describe(spec).graph, 3)) for mode in MODES.values()]
        for plan, error in run_all(spec, plans):
            assert error == 0.0, (options, plan.mode)
