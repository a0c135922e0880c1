"""What an engine sets aside for its plans, all of which have one link, batch rule and order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from replay import TIMEOUT_S, tiny

from physis_core.errors import PlanError
from physis_core.graph import StageGraph
from physis_core.models.registry import describe
from physis_core.planning.modes import full_split, sequential, wave
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.runtime.engine import Engine, StreamOptions
from physis_core.runtime.links.ends import ENGINE
from physis_core.runtime.packets import HeaderCodec
from physis_core.runtime.pool import available_cpus
from physis_core.runtime.provision import Provision
from physis_core.runtime.virtual import VirtualModel
from physis_core.runtime.wiring import LinkKey, Wiring

GRAPH = StageGraph(steps=2, blocks=3)
SPLIT = full_split(GRAPH, 2)
DIM = 64
LATER_FIRST = replace(SPLIT, order=((2, 1, 0), (5, 4, 3)))
RULE = BatchRule(4, across_steps=True)


@pytest.mark.parametrize(('other', 'text'), [
    (full_split(StageGraph(2, 2), 2), 'for StageGraph.*; plan for this model'),
    (replace(SPLIT, link='gloo'), 'link `gloo`.*`shm`; give all .* one link'),
    (replace(SPLIT, batch=RULE),
     r'BatchRule\(max_batch=4, across_steps=True.*BatchRule\(max_batch=1.*; '
     'give all .* one batch rule'),
    (replace(SPLIT, order=((0, 1, 2), (3, 4, 5))),
     r'stages of device 0 in the order \(0, 1, 2\).*; give all .* one order')])
def test_a_plan_that_the_engine_could_not_honour_is_refused(other: Plan, text: str) -> None:
    with pytest.raises(PlanError, match=f'plan of slot 2 .*{text}'):
        Provision.for_plans(GRAPH, [SPLIT, LATER_FIRST, other])
    with pytest.raises(PlanError, match=f'the plan .*{text}'):
        Provision.for_plans(GRAPH, [SPLIT]).check(other)


def test_orders_are_united_and_a_later_plan_must_fit_in() -> None:
    plans = [replace(SPLIT, order=((1, 0, 2), (5, 4, 3))),
             replace(SPLIT, ranks=full_split(GRAPH, 3).ranks, order=((1, 0), (3, 2), (5, 4)))]
    provision = Provision.for_plans(GRAPH, plans)
    assert provision.devices[0].order == (1, 0, 2)
    assert sorted(provision.devices[1].order) == [2, 3, 4, 5]
    for plan in plans:
        provision.check(plan)
        for device in range(plan.devices):
            served = [stage for stage in provision.devices[device].order
                      if plan.device_of(stage) == device]
            assert tuple(served) == plan.order_on(device)
    with pytest.raises(PlanError, match=r'device 0 in the order \(2, 1, 0\), the engine .* \(1, 0'):
        provision.check(LATER_FIRST)
    provision.check(SPLIT)  # it does not mind


def test_the_longest_patience_of_several_plans_holds() -> None:
    plans = [replace(SPLIT, batch=replace(RULE, wait_us=us)) for us in (0, 5, 3)]
    provision = Provision.for_plans(GRAPH, plans)
    assert provision.batch == replace(RULE, wait_us=5)
    provision.check(plans[0])


def test_no_order_is_later_stages_first() -> None:
    provision = Provision.for_plans(GRAPH, [SPLIT, sequential(GRAPH), wave(GRAPH, 2)])
    assert [device.order for device in provision.devices] == [(), ()]
    provision.check(LATER_FIRST)
    with pytest.raises(PlanError, match='was started with later stages first'):
        provision.check(replace(SPLIT, order=((2, 1, 0), (5, 3, 4))))


@pytest.mark.parametrize('earlier_first', [False, True])
def test_a_device_serves_chunks_that_are_due_together_in_the_order_of_the_plan(
        earlier_first: bool) -> None:
    """Three chunks are let in at one moment; the device is busy with the first when they come."""
    model = VirtualModel(StageGraph(1, 4), 10_000.0, 0.0)
    order = (tuple(range(4)),) if earlier_first else ()
    plan = replace(sequential(model.graph), order=order, max_in_flight=3)
    with Engine(model, plan) as engine:
        stream = engine.open_stream(StreamOptions(period_ns=0))
        for _ in range(3):
            assert stream.next_chunk(TIMEOUT_S) is not None
        tasks = [(int(one['chunk']), int(one['block'])) for one in engine.stage_logs()[0].latest()]
    assert (tasks.index((2, 0)) < tasks.index((0, 3))) == earlier_first


@pytest.mark.parametrize('in_place', [False, True])
def test_a_link_to_a_single_stage_has_the_places_of_the_plan_and_others_take_what_comes(
        in_place: bool) -> None:
    description = describe(tiny())
    graph = description.graph
    plan = replace(full_split(graph, graph.stages - 1), slots_per_edge=3, max_in_flight=9)
    alone = [len(plan.stages_on(device)) == 1 for device in range(plan.devices)]
    assert alone[1:] == [True] * 4
    assert alone[:1] == [False]
    wiring = Wiring(description, Provision.for_plans(graph, [plan]), range(plan.devices),
                    in_place, HeaderCodec(graph.steps), lambda device: lambda: None)
    places = {key: wiring.make(key).slots for key in wiring.missing(plan)}
    wiring.close()
    assert places.pop(LinkKey(ENGINE, 0, 'token')) == plan.max_in_flight
    assert places.pop(LinkKey(4, ENGINE, 'output')) == plan.max_in_flight
    assert places == {LinkKey(device, device + 1, 'chunk'): 3 + in_place for device in range(4)}


def test_a_link_to_several_stages_takes_all_that_may_be_under_way() -> None:
    description = describe(tiny())
    graph = description.graph
    plan = replace(full_split(graph, 2), slots_per_edge=3, max_in_flight=9)
    wiring = Wiring(description, Provision.for_plans(graph, [plan, plan]), range(2), True,
                    HeaderCodec(graph.steps), lambda device: lambda: None)
    assert wiring.make(LinkKey(0, 1, 'chunk')).slots == 2 * plan.max_in_flight
    wiring.close()


@pytest.fixture(scope='module')
def uneven() -> Iterator[Engine]:
    """Two blocks on device 0, six on device 1."""
    spec = tiny(steps=1, blocks=8, dim=DIM, window=1)
    plan = Plan('uneven', describe(spec).graph, ranks_from_devices([0] * 2 + [1] * 6))
    with Engine(spec, plan) as engine:
        yield engine


def test_a_device_holds_the_weights_and_the_kv_of_its_own_blocks_alone(uneven: Engine) -> None:
    few, many = uneven.device_processes()
    block_bytes, rest = divmod(many.weights_bytes - few.weights_bytes, 6 - 2)
    assert rest == 0
    assert block_bytes > 4 * 12 * DIM**2  # float32 matrices of attention and feed-forward layer
    outside_bytes = few.weights_bytes - 2 * block_bytes  # embedding and head
    assert 0 < outside_bytes < block_bytes
    assert many.kv_bytes == 3 * few.kv_bytes > 0


@pytest.mark.skipif(len(available_cpus()) < 2, reason='hosts are pinned where each has a CPU')
def test_each_host_has_a_cpu_of_its_own(uneven: Engine) -> None:
    cpus = [psutil.Process(pid).cpu_affinity() for pid in uneven.worker_pids]
    assert cpus == [[cpu] for cpu in available_cpus()[:2]]
