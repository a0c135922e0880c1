"""What an engine sets aside for its plans, all of which have one link, batch rule and order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from physis_core.errors import PlanError
from physis_core.graph import StageGraph
from physis_core.planning.modes import full_split, sequential, wave
from physis_core.planning.plan import BatchRule, Plan
from physis_core.runtime.provision import Provision

GRAPH = StageGraph(steps=2, blocks=3)
SPLIT = full_split(GRAPH, 2)
RULE = BatchRule(4, across_steps=True)


@pytest.mark.parametrize(('other', 'text'), [
    (full_split(StageGraph(2, 2), 2), 'for StageGraph.*; plan for this model'),
    (replace(SPLIT, link='gloo'), 'link `gloo`.*`shm`; give all .* one link'),
    (replace(SPLIT, batch=RULE),
     r'BatchRule\(max_batch=4, across_steps=True.*BatchRule\(max_batch=1.*; '
     'give all .* one batch rule'),
    (replace(SPLIT, batch=BatchRule(wait_us=5)), 'wait_us=5.*wait_us=0.*one batch rule'),
    (replace(SPLIT, order=((0, 1, 2), (3, 4, 5))),
     r'stages of device 0 in the order \(0, 1, 2\).*; give all .* one order')])
def test_a_plan_that_the_engine_could_not_honour_is_refused(other: Plan, text: str) -> None:
    with pytest.raises(PlanError, match=f'plan of slot 2 .*{text}'):
        Provision.for_plans(GRAPH, [SPLIT, SPLIT, other])
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
        provision.check(SPLIT)


def test_no_order_is_later_stages_first() -> None:
    provision = Provision.for_plans(GRAPH, [SPLIT, sequential(GRAPH), wave(GRAPH, 2)])
    assert [device.order for device in provision.devices] == [(), ()]
    provision.check(replace(SPLIT, order=((2, 1, 0), (5, 4, 3))))
    with pytest.raises(PlanError, match='was started with later stages first'):
        provision.check(replace(SPLIT, order=((2, 1, 0), (5, 3, 4))))
