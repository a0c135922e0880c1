"""Placement: never too much on a device, all or nothing, and nothing left behind."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_profiles import affine_profile

from physis_core.errors import InputError, Refused
from physis_core.graph import KVMode
from physis_core.planning.admission import Admission, NoRoom
from physis_core.planning.capacity import best_placement, upper_bound, within_response, wrap
from physis_core.planning.cluster import Cluster, Device, uniform_cluster
from physis_core.planning.devices import load_device
from physis_core.planning.pool import FULL, Pool, StreamClass
from physis_core.planning.slo import SLO
from physis_core.planning.strategies import STRATEGIES


def cluster_of(*memory):
    return Cluster(tuple(Device('given', size) for size in memory))


def state(pool):
    return copy.deepcopy((pool.free_bytes, pool.tenants, pool.placed, pool.class_of))


@st.composite
def classes(draw, name='toy'):
    profile = affine_profile(
        draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(0, 20)),
        draw(st.integers(1, 20)), max_batch=draw(st.integers(1, 4)),
        kv_bytes=draw(st.integers(1, 9)), weight_bytes=draw(st.integers(0, 30)), name=name)
    return StreamClass(profile, draw(st.integers(50, 600)))


clusters = st.lists(st.integers(20, 200), min_size=1, max_size=5).map(lambda m: cluster_of(*m))
mixes = st.tuples(classes('small'), classes('large'), classes('small')).map(list)


def check_limits(pool):
    """What is on each device, counted anew from the streams' own placements."""
    for device in range(pool.devices):
        used, busy = 0, 0.0
        for key, tenant in pool.tenants.items():
            members = [placed for name, placed in pool.placed.items()
                       if pool.class_of[name] == key]
            blocks = tenant.stream_class.profile.graph.blocks
            tasks = [sum(where == device for placed in members
                         for stage, where in enumerate(placed) if stage % blocks == block)
                     for block in range(blocks)]
            assert tasks == tenant.tasks[device]
            used += sum(count * size
                        for count, size in zip(tasks, tenant.stream_class.kv_bytes, strict=True))
            busy += sum(tenant.stream_class.busy_us(block, count)
                        for block, count in enumerate(tasks)) / tenant.stream_class.period_us
        held = {(key[0], block, tenant.stream_class.weight_bytes[block])
                for key, tenant in pool.tenants.items()
                for block, count in enumerate(tenant.tasks[device]) if count}
        used += sum(size for _, _, size in held)
        assert used == pool.cluster.devices[device].memory_bytes - pool.free_bytes[device]
        assert pool.free_bytes[device] >= 0
        assert busy == pytest.approx(pool.utilisation(device))
        assert busy <= FULL


@given(clusters, classes(), st.sampled_from(sorted(STRATEGIES)))
def test_every_strategy_keeps_the_limits(cluster, stream_class, strategy):
    pool = Pool(cluster)
    for number in range(6):
        trial = STRATEGIES[strategy](pool, stream_class)
        if trial is None:
            break
        pool.keep(str(number), trial)
    check_limits(pool)


@given(clusters, classes())
def test_portfolio_is_between_even_split_and_bound(cluster, stream_class):
    pools = best_placement(cluster, stream_class)
    counts = {name: len(pool.placed) for name, pool in pools.items()}
    assert counts['portfolio'] == max(counts.values())
    assert counts['portfolio'] >= counts['even']
    assert counts['portfolio'] <= upper_bound(cluster, stream_class) + 1e-9
    check_limits(pools['wrap'])


@given(clusters, mixes, st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=14))
def test_refusals_and_departures_leave_no_trace(cluster, mix, events):
    """A refused stream changes nothing; a stream that leaves gives back what it took, exactly."""
    mix[2] = StreamClass(mix[0].profile, mix[2].period_us)  # the same model at another period
    admission = Admission(cluster)
    for arrives, number in events:
        name = f'stream-{number}'
        if name in admission.pool.placed:
            admission.leave(name)
        elif arrives:
            chosen = mix[number % 3]
            untouched = state(admission.pool)
            try:
                admission.admit(name, chosen.profile, SLO(chosen.period_us))
            except Refused:
                assert state(admission.pool) == untouched
            else:
                placed = state(admission.pool)
                admission.leave(name)
                assert state(admission.pool) == untouched
                admission.admit(name, chosen.profile, SLO(chosen.period_us))
                assert state(admission.pool) == placed
        check_limits(admission.pool)
    for name in list(admission.pool.placed):
        admission.leave(name)
    assert state(admission.pool) == state(Pool(cluster))


@given(clusters, mixes)
def test_admitted_streams_never_move(cluster, mix):
    admission = Admission(cluster)
    for number, chosen in enumerate(mix * 2):
        kept = dict(admission.pool.placed)
        try:
            plan = admission.admit(str(number), StreamClass(
                mix[0].profile if chosen.profile.model == 'small' else chosen.profile,
                chosen.period_us).profile, SLO(chosen.period_us))
        except Refused:
            continue
        assert kept.items() <= admission.pool.placed.items()
        assert [plan.device_of(stage) for stage in range(plan.graph.stages)] == list(
            admission.pool.placed[str(number)])


def test_the_bound_has_no_hidden_launch_costs():
    """Full batches only: the pool is busy to the last microsecond, and the bound allows it."""
    stream_class = StreamClass(affine_profile(1, 1, 10, 0, max_batch=1), 10)
    cluster = cluster_of(10)
    assert upper_bound(cluster, stream_class) == 1
    assert len(best_placement(cluster, stream_class)['wrap'].placed) == 1


@pytest.mark.parametrize('model, even, wrapped, bound', [
    ('wan2.1-1.3b', 24, 77, 77.4), ('wan2.2-5b', 24, 79, 79.7), ('wan2.1-14b', 24, 38, 38.8),
    ('ltx-2.x', 24, 54, 54.8), ('h3', 12, 17, 17.6)])
def test_reference_capacities(h100_profiles, model, even, wrapped, bound):
    cluster = uniform_cluster(24, load_device('h100'), 78)
    stream_class = StreamClass(h100_profiles[model], 1_600_000)
    counts = {name: len(pool.placed) for name, pool in best_placement(
        cluster, stream_class).items()}
    assert upper_bound(cluster, stream_class) == pytest.approx(bound, abs=0.05)
    assert (counts['even'], counts['wrap'], counts['portfolio']) == (even, wrapped, wrapped)
    assert counts['spread'] == wrapped  # one at a time, nobody moved
    assert even <= counts['best_fit'] <= counts['best_fit_lds'] <= wrapped


def test_wrap_around_holds_few_copies(h100_profiles):
    cluster = uniform_cluster(24, load_device('h100'), 78)
    pool = wrap(cluster, StreamClass(h100_profiles['ltx-2.x'], 1_600_000), 54)
    tenant = next(iter(pool.tenants.values()))
    copies = sum(count > 0 for row in tenant.tasks for count in row)
    assert copies <= 48 + 24 - 1


def test_a_response_limit_costs_streams(h100_profiles):
    cluster = uniform_cluster(4, load_device('h100'), 78)
    stream_class = StreamClass(h100_profiles['wan2.1-1.3b'], 1_600_000)
    counts = []
    for limit_us in (2_500_000, 1_300_000, 420_000, 300_000):
        pool, schedule = within_response(cluster, stream_class, limit_us)
        counts.append(len(pool.placed))
        if schedule is not None:
            assert max(schedule.response_us.values()) <= limit_us
    assert counts == sorted(counts, reverse=True) and counts[0] == 12 and counts[-1] == 0


# -- refusals ----------------------------------------------------------------------------------


def admitted(cluster, *promises):
    admission = Admission(cluster)
    for number, (profile, period_us) in enumerate(promises):
        admission.admit(f'stream-{number}', profile, SLO(period_us))
    return admission


def test_refused_for_memory():
    profile = affine_profile(2, 3, 1, 1, kv_bytes=10, weight_bytes=4)
    admission = admitted(cluster_of(100), (profile, 1000))
    with pytest.raises(NoRoom, match=r'missing .*; it fits at no period') as caught:
        admission.admit('late', profile, SLO(1000))
    shortage = caught.value.shortage
    assert (shortage.resource, shortage.missing, shortage.nearest_period_us) == (
        'memory', 60 - (100 - 72), None)


def test_refused_for_time_names_a_period_that_fits():
    profile = affine_profile(2, 3, 10, 10, max_batch=1)
    admission = admitted(cluster_of(1000), (profile, 200))
    with pytest.raises(NoRoom, match=r'devices of time are missing .*; it would fit at') as caught:
        admission.admit('late', profile, SLO(200))
    shortage = caught.value.shortage
    assert shortage.resource == 'time'
    assert shortage.missing == pytest.approx(120 / 200 - 80 / 200)
    admission.admit('late', profile, SLO(shortage.nearest_period_us))


def test_refused_for_time_where_devices_are_full_says_so_and_names_no_period():
    profile = affine_profile(2, 1, 10, 10, max_batch=1, kv_bytes=7)
    admission = admitted(cluster_of(1000, 1000), (profile, 40), (profile, 40))
    with pytest.raises(NoRoom, match=(r'1 devices of time are missing \(it needs 1, 0 of 2 are not '
                                      r'promised\); it fits at no period')) as caught:
        admission.admit('late', profile, SLO(40))
    assert caught.value.shortage.resource == 'time'
    assert caught.value.shortage.missing == pytest.approx(1.0)


def test_time_that_is_free_in_fragments_is_what_is_missing():
    """0.4 of each device is free, a stage takes 0.6: enough in all, but nowhere."""
    profile = affine_profile(1, 1, 30, 30, max_batch=1)
    admission = admitted(cluster_of(1000, 1000), (profile, 100), (profile, 100))
    with pytest.raises(NoRoom, match=r'0.6 devices of time are missing') as caught:
        admission.admit('late', profile, SLO(100))
    shortage = caught.value.shortage
    assert (shortage.resource, shortage.missing) == ('time', pytest.approx(0.6))
    assert shortage.free == pytest.approx(0.8)


def test_memory_is_named_where_it_lacks_though_time_does_too():
    profile = affine_profile(2, 1, 10, 10, max_batch=1, kv_bytes=50)
    admission = admitted(cluster_of(100), (profile, 40))
    with pytest.raises(NoRoom, match='GB of memory are missing') as caught:
        admission.admit('late', profile, SLO(40))
    assert caught.value.shortage.missing == 100


def test_refused_for_fragments():
    small = affine_profile(1, 1, 1, 1, kv_bytes=6, name='small')
    large = affine_profile(1, 1, 1, 1, kv_bytes=8, name='large')
    admission = admitted(cluster_of(10, 10), (small, 100), (small, 100))
    with pytest.raises(NoRoom, match='in one piece') as caught:
        admission.admit('late', large, SLO(100))
    assert caught.value.shortage.resource == 'fragments'
    assert caught.value.shortage.missing == 8


def test_promises_that_no_pool_could_keep():
    profile = affine_profile(2, 3, 10, 10)
    admission = Admission(cluster_of(1000))
    with pytest.raises(InputError, match='shorter than its slowest stage'):
        admission.admit('hasty', profile, SLO(19))
    with pytest.raises(InputError, match=r'stages of a chunk alone take 0\.12 ms'):
        admission.admit('hasty', profile, SLO(1000, max_response_us=100))
    clean = affine_profile(2, 3, 10, 10, kv_mode=KVMode.CLEAN)
    with pytest.raises(InputError, match='until its own history is written'):
        admission.admit('hasty', clean, SLO(100))


def test_names_are_unique():
    profile = affine_profile(1, 1, 1, 1)
    admission = admitted(cluster_of(1000), (profile, 100))
    with pytest.raises(InputError, match='`stream-0` is in the pool already'):
        admission.admit('stream-0', profile, SLO(100))
    with pytest.raises(InputError, match='`other` is not in the pool'):
        admission.leave('other')
