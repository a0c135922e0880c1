"""Periodic timetables: feasible, ordered, and as short as the load allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_profiles import affine_profile

from physis_core.errors import PlanError
from physis_core.graph import KVMode
from physis_core.planning.loads import device_loads_us, step_batches
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.planning.timetable import timetable


def no_hops(sender, receiver):
    return 0


@st.composite
def placed(draw, kv_mode=KVMode.SAME_STEP):
    """A small profile and a plan that puts its stages anywhere."""
    profile = affine_profile(draw(st.integers(1, 4)), draw(st.integers(1, 4)),
                             draw(st.integers(0, 9)), draw(st.integers(1, 9)), kv_mode=kv_mode)
    stages = profile.graph.stages
    device_of = draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    batch = draw(st.integers(1, 4)) if kv_mode is KVMode.SAME_STEP else 1
    return profile, Plan('any', profile.graph, ranks_from_devices(device_of),
                         batch=BatchRule(batch, across_steps=batch > 1))


def check(table, profile, plan, hop_us):
    graph = profile.graph
    lengths = {}
    for slot in table.slots:
        for step in slot.batch.steps:
            lengths[step, slot.batch.block] = slot.length_us
            start = table.start_us[graph.stage(step, slot.batch.block)]
            assert (start - slot.start_us) % table.period_us == 0
    for device in range(plan.devices):
        busy = [(slot.start_us + offset) % table.period_us
                for slot in table.slots if slot.batch.device == device
                for offset in range(slot.length_us)]
        assert len(busy) == len(set(busy))
    for stage in range(1, graph.stages):
        hop = hop_us(plan.device_of(stage - 1), plan.device_of(stage))
        before = table.start_us[stage - 1] + lengths[graph.step_block(stage - 1)]
        assert table.start_us[stage] >= before + hop
    for stage, start in enumerate(table.start_us):
        step, block = graph.step_block(stage)
        source = graph.kv_source_step(step)
        if source != step:
            written = table.start_us[graph.stage(source, block)] + lengths[source, block]
            assert start + table.period_us >= written
    output = graph.output_stage
    assert table.response_us == table.start_us[output] + lengths[graph.step_block(output)]


@given(placed(), st.integers(0, 5))
def test_any_assignment_has_a_timetable_at_its_heaviest_load(case, hop):
    profile, plan = case

    def hop_us(sender, receiver):
        return hop if sender != receiver else 0

    batches = step_batches(plan, profile.max_batch)
    heaviest = max(device_loads_us(batches, plan.devices, profile.mean_us))
    dense = timetable(plan.graph, batches, profile.mean_us, hop_us, 1, dense=True)
    assert dense.period_us == heaviest
    for table in (dense, timetable(plan.graph, batches, profile.mean_us, hop_us, 1)):
        check(table, profile, plan, hop_us)


@given(st.sampled_from([KVMode.CLEANER_NEIGHBOUR, KVMode.CLEAN]).flatmap(placed))
def test_history_is_written_before_it_is_read(case):
    profile, plan = case
    batches = step_batches(plan, profile.max_batch)
    check(timetable(plan.graph, batches, profile.mean_us, no_hops, 1), profile, plan, no_hops)


def test_steps_that_wait_for_each_other_cannot_share_a_batch():
    profile = affine_profile(2, 2, 5, 5, kv_mode=KVMode.CLEANER_NEIGHBOUR)
    plan = Plan('bad', profile.graph, ranks_from_devices([0, 0, 0, 0]),
                batch=BatchRule(2, across_steps=True))
    with pytest.raises(PlanError, match='cannot share a batch'):
        timetable(plan.graph, step_batches(plan, 8), profile.mean_us, no_hops, 1)
