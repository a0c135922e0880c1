"""Plans of one stream: the laws of the published modes, and the search against the bound."""

import pytest
from toy_profiles import affine_profile

from physis_core.errors import InputError
from physis_core.graph import KVMode
from physis_core.models.presets import load_preset
from physis_core.planning.bound import lower_bound_us
from physis_core.planning.cluster import bare_cluster, uniform_cluster
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.plan import Plan
from physis_core.planning.single import best_period, plan_single_stream
from physis_core.planning.slo import SLO

T1, T4 = 2905, 9220
BLOCKS, STEPS = 30, 4


def fastest(candidates, mode):
    return next(one.prediction for one in candidates if one.plan.mode == mode)


def plans(profile, devices, **options):
    return plan_single_stream(profile, bare_cluster(devices, 1e6), **options)


@pytest.mark.parametrize('devices, ratio', [
    (1, 1.01), (2, 1.01), (4, 1.07), (8, 1.07), (16, 1.07), (30, 1.01), (60, 1.01), (120, 1.01)])
def test_best_period_is_near_the_bound(wan_profile, devices, ratio):
    best = best_period(plans(wan_profile, devices))
    bound = lower_bound_us(wan_profile, devices)
    assert bound <= best.prediction.period_us <= ratio * bound
    assert best.prediction.lower_bound_us == int(bound)


def test_laws_of_the_published_modes(wan_profile):
    assert fastest(plans(wan_profile, 4), 'wave').period_us == BLOCKS * T1
    assert fastest(plans(wan_profile, 30), 'streamdiffusionv2').period_us == T4
    split = fastest(plans(wan_profile, 120), 'full_split')
    assert (split.period_us, split.response_us) == (T1, 120 * T1)
    one = plans(wan_profile, 1)
    assert fastest(one, 'sequential').period_us == fastest(one, 'sequential').response_us
    assert fastest(one, 'sequential').response_us == 120 * T1
    batched = fastest(one, 'streamdiffusionv2')
    assert batched.period_us == BLOCKS * T4
    assert batched.response_us == STEPS * batched.period_us


@pytest.mark.parametrize('devices', [1, 2, 3, 5, 6, 10, 15, 30])
def test_batching_trades_response_for_period(wan_profile, devices):
    """(T G / S - b) (R / S - a) = a b, where blocks divide evenly."""
    a, b, stages = 800, 2105, BLOCKS * STEPS
    for mode in ('streamdiffusionv2', 'full_split'):
        seen = fastest(plans(wan_profile, devices), mode)
        product = (seen.period_us * devices / stages - b) * (seen.response_us / stages - a)
        assert product == pytest.approx(a * b, rel=1e-6)


def test_front_is_what_nothing_dominates(wan_profile):
    candidates = plans(wan_profile, 8)
    times = [(one.prediction.period_us, one.prediction.response_us)
             for one in candidates if one.on_front]
    assert times == sorted(times)
    assert [response for _, response in times] == sorted(
        (response for _, response in times), reverse=True)
    assert {'sequential', 'wave', 'streamdiffusionv2', 'full_split'} <= {
        one.plan.mode for one in candidates}


def test_plans_are_complete(wan_profile):
    for one in plans(wan_profile, 7):
        plan = one.plan
        assert Plan.from_json(plan.to_json()) == plan
        assert plan.period_us == one.prediction.period_us
        assert plan.max_in_flight * plan.period_us >= one.prediction.response_us
        assert len(plan.order) == plan.devices
        assert len(one.prediction.device_bytes) == plan.devices
        assert one.batch <= plan.batch.max_batch


@pytest.mark.parametrize('mode', [KVMode.CLEANER_NEIGHBOUR, KVMode.CLEAN])
def test_late_history_bounds_every_plan(mode):
    profile = affine_profile(3, 4, 100, 50, kv_mode=mode)
    best = best_period(plans(profile, 16))
    assert best.prediction.period_us == lower_bound_us(profile, 16)
    assert best.batch == 1


def test_memory_decides_which_plans_there_are():
    device = load_device('h100')
    profile = analytic_profile(load_preset('h3'), device, 8)
    with pytest.raises(InputError, match=r'`h3` needs 143 GB .* offer 78 GB.*give more devices'):
        plan_single_stream(profile, uniform_cluster(1, device))
    found = plan_single_stream(profile, uniform_cluster(2, device))
    assert all(max(one.prediction.device_bytes) <= 78e9 for one in found)
    assert 'full_split' not in {one.plan.mode for one in found}  # a copy of all weights on each


def test_goals_choose(wan_profile):
    found = plans(wan_profile, 8, slo=SLO(40_000))
    assert all(one.prediction.period_us <= 40_000 for one in found)
    assert all(one.prediction.margin == pytest.approx(
        1 - one.prediction.period_p99_us / 40_000) for one in found)
    with pytest.raises(InputError, match=r'period of 30 ms or less; the shortest found is 36\.88'):
        plans(wan_profile, 8, slo=SLO(30_000))
    with pytest.raises(InputError, match=r'within 300 ms; the nearest responds in 348\.6 ms'):
        plans(wan_profile, 8, slo=SLO(10 ** 6, 300_000))


def test_found_plans_can_be_put_to_the_proof(wan_profile):
    refused = plans(wan_profile, 60, confirm=lambda candidate: None)
    assert all(not one.plan.mode.startswith('by_') for one in refused)


def test_neighbours_stay_in_the_fast_domain():
    """Stages walk through the devices in the cluster's order: one slow hop a domain."""
    device = load_device('h100')
    profile = analytic_profile(load_preset('wan2.1-1.3b'), device, 8)
    cluster = uniform_cluster(16, device)
    split = next(one.plan for one in plan_single_stream(profile, cluster)
                 if one.plan.mode == 'full_split')
    slow = [(a, b) for a, b in split.edges()
            if cluster.devices[a].domain != cluster.devices[b].domain]
    assert slow == [(7, 8)]
