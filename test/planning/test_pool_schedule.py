"""The periodic schedule of many streams."""

import pytest
from toy_profiles import affine_profile

from physis_core.errors import InputError
from physis_core.planning.capacity import wrap
from physis_core.planning.cluster import bare_cluster, uniform_cluster
from physis_core.planning.devices import load_device
from physis_core.planning.pool import Pool, StreamClass
from physis_core.planning.pool_schedule import pool_schedule
from physis_core.planning.strategies import spread


def check(pool, schedule):
    graph = next(iter(pool.tenants.values())).stream_class.profile.graph
    for device in range(pool.devices):
        busy = [(batch.start_us % schedule.period_us, batch.length_us)
                for batch in schedule.batches if batch.device == device]
        for start, length in busy:
            for other, other_length in busy:
                if (start, length) != (other, other_length):
                    assert (other - start) % schedule.period_us >= length
        assert sum(length for _, length in busy) <= schedule.period_us
    ends = dict.fromkeys(pool.placed, 0)
    for batch in sorted(schedule.batches, key=lambda each: each.start_us):
        for stream in batch.streams:
            assert pool.placed[stream][graph.stage(batch.step, batch.block)] == batch.device
            assert batch.start_us >= ends[stream]
            ends[stream] = batch.start_us + batch.length_us
    for stream, end in ends.items():
        assert schedule.response_us[stream] == end - schedule.entry_us[stream]


@pytest.mark.parametrize('model, streams', [('wan2.1-1.3b', 12), ('wan2.1-14b', 6)])
def test_schedule_of_a_full_pool(h100_profiles, model, streams):
    cluster = uniform_cluster(4, load_device('h100'), 78)
    pool = wrap(cluster, StreamClass(h100_profiles[model], 1_600_000), streams)
    schedule = pool_schedule(pool)
    check(pool, schedule)
    profile = h100_profiles[model]
    least = profile.graph.stages * profile.mean_us(0, 1)
    assert min(schedule.response_us.values()) >= least


def test_near_full_load_batches_run_back_to_back():
    stream_class = StreamClass(affine_profile(2, 3, 10, 10, max_batch=2), 200)
    pool = Pool(bare_cluster(2, 1e6))
    while (trial := spread(pool, stream_class)) is not None:
        pool.keep(str(len(pool.placed)), trial)
    schedule = pool_schedule(pool)
    if schedule is not None:
        check(pool, schedule)
    assert len(pool.placed) >= 3


def test_streams_of_different_periods_have_no_common_schedule():
    pool = Pool(bare_cluster(1, 1e6))
    for period_us in (1000, 1100):
        pool.keep(str(period_us), spread(pool, StreamClass(
            affine_profile(1, 2, 10, 10), period_us)))
    with pytest.raises(InputError, match='streams of 2 periods'):
        pool_schedule(pool)
