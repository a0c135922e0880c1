"""The lower bound: reference values, and that nothing is below it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_profiles import affine_profile

from physis_core.graph import KVMode
from physis_core.planning.bound import dependency_bound_us, lower_bound_us, split_costs
from physis_core.planning.loads import device_loads_us, step_batches
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.planning.profile import BatchTimes, BlockGroup


@pytest.mark.parametrize('devices, milliseconds', [
    (1, 276.6), (2, 138.3), (4, 69.15), (8, 34.575), (16, 17.2875), (30, 9.22), (60, 5.01),
    (120, 2.905), (500, 2.905)])
def test_reference_values(wan_profile, devices, milliseconds):
    assert lower_bound_us(wan_profile, devices) / 1e3 == pytest.approx(milliseconds, abs=1e-9)


def test_small_batches_raise_the_bound():
    unbatched = affine_profile(4, 6, 100, 50, max_batch=1)
    assert lower_bound_us(unbatched, 1) == 24 * 150


def test_batches_that_do_not_pay_do_not_raise_the_bound():
    times = BatchTimes((100, 210, 330), (100, 210, 330), (100, 210, 330))
    profile = replace(affine_profile(3, 2, 0, 1), groups=(BlockGroup(2, times),))
    assert lower_bound_us(profile, 1) == 3 * 2 * 100


def test_two_devices_cannot_share_a_stage():
    times = [BatchTimes((one,), (one,), (one,)) for one in (500, 300, 300)]
    profile = replace(affine_profile(1, 3, 0, 1, max_batch=1),
                      groups=tuple(BlockGroup(1, one) for one in times))
    assert lower_bound_us(profile, 2) == pytest.approx(600, rel=1e-3)
    assert lower_bound_us(profile, 3) == 500


def test_split_costs():
    never = float('inf')
    assert split_costs([10, 12, 14], 3) == [
        [0, never, never, never], [never, 10, never, never], [never, 12, 20, never],
        [never, 14, 22, 30]]
    assert split_costs([10], 2)[2] == [never, never, 20]


@given(st.data())
def test_no_assignment_is_below_the_bound(data):
    steps = data.draw(st.integers(1, 4))
    blocks = data.draw(st.integers(1, 5))
    profile = affine_profile(steps, blocks, data.draw(st.integers(0, 50)),
                             data.draw(st.integers(1, 50)), max_batch=4)
    devices = data.draw(st.integers(1, 8))
    device_of = data.draw(st.lists(st.integers(0, devices - 1), min_size=steps * blocks,
                                   max_size=steps * blocks))
    batch = data.draw(st.integers(1, 4))
    plan = Plan('any', profile.graph, ranks_from_devices(device_of),
                batch=BatchRule(batch, across_steps=True))
    loads = device_loads_us(step_batches(plan, 4), plan.devices, profile.mean_us)
    assert max(loads) >= lower_bound_us(profile, devices) - 1e-9


@pytest.mark.parametrize('mode, stages', [
    (KVMode.SAME_STEP, 1), (KVMode.CLEANER_NEIGHBOUR, 6 + 1), (KVMode.CLEAN, 4 * 6 + 1)])
def test_history_bounds_the_period_of_one_stream(mode, stages):
    profile = affine_profile(4, 6, 100, 50, kv_mode=mode)
    assert dependency_bound_us(profile) == stages * 150
