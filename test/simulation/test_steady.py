"""Predictions hold when plans are executed."""

import pytest

from physis_core.graph import StageGraph
from physis_core.models.presets import load_preset
from physis_core.planning.capacity import wrap
from physis_core.planning.cluster import bare_cluster, uniform_cluster
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.pool import StreamClass
from physis_core.planning.pool_schedule import pool_schedule
from physis_core.planning.profile import given_profile
from physis_core.planning.single import plan_single_stream
from physis_core.simulation.steady import steady_state
from physis_core.simulation.twin import Stream, Twin, profile_ns


@pytest.mark.parametrize('devices', [1, 2, 3, 4, 6, 12, 24])
def test_published_modes_do_what_is_predicted(devices):
    profile = given_profile('toy', StageGraph(4, 6), [100 + 200 * batch for batch in range(1, 5)])
    cluster = bare_cluster(devices, 1.0)
    for candidate in plan_single_stream(profile, cluster):
        if candidate.plan.mode.startswith('by_'):
            continue
        seen = steady_state(candidate.plan, profile, cluster)
        assert seen.period_us == pytest.approx(candidate.prediction.period_us, rel=0.02)
        assert seen.response_us <= 1.1 * candidate.prediction.response_us


@pytest.mark.parametrize('model, streams', [('wan2.1-1.3b', 6), ('ltx-2.x', 3)])
def test_a_pool_does_what_its_schedule_predicts(model, streams):
    device = load_device('h100')
    profile = analytic_profile(load_preset(model), device, 4)
    cluster = uniform_cluster(2, device, 78)
    pool = wrap(cluster, StreamClass(profile, 1_600_000), streams)
    schedule = pool_schedule(pool)
    outcome = Twin([Stream(pool.plan(name), profile_ns(profile.mean_us), chunks=6,
                           open_ns=1000 * schedule.entry_us[name])
                    for name in sorted(pool.placed)]).run()
    slowest_us = max(schedule.response_us.values())
    for number in range(streams):
        assert outcome.mean_period_ns(number, 1) == pytest.approx(1.6e9, rel=0.01)
        assert max(record.response_ns for record in outcome.chunks[number]) <= 1100 * slowest_us
