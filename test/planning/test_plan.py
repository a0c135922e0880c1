"""A plan that contradicts itself, or others on its devices, is refused by naming the stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from physis_core.errors import PlanError
from physis_core.graph import StageGraph
from physis_core.planning.modes import full_split
from physis_core.planning.plan import Plan, VirtualRank, ranks_from_devices, united_order

GRAPH = StageGraph(steps=2, blocks=3)


def ordered(*order: int) -> Plan:
    """Those stages on device 0 in that order, all others on device 1."""
    device_of = [int(stage not in order) for stage in range(GRAPH.stages)]
    plan = Plan('two', GRAPH, ranks_from_devices(device_of))
    return replace(plan, order=(order,))


@pytest.mark.parametrize(('ranks', 'text'), [
    ([(0, 1, 2, 3), (5,)], r'stage 4 is on no device \(1 of 6 missing\)'),
    ([(0, 1, 2, 3, 4), (4, 5)], 'stage 4 is on devices 0 and 1; place it once'),
    ([(0, 1, 4, 4), (2, 3, 5)], 'stage 4 is on devices 0 and 0; place it once'),
    ([(0, 1, 2, 3, 4, 5), (6,)], 'stage 6 on device 1 does not exist; .* stages 0 to 5'),
    ([(0, 1, 2, 3, 4, 5, -1)], 'stage -1 on device 0 does not exist'),
    ([], r'stage 0 is on no device \(6 of 6 missing\)')])
def test_every_stage_is_placed_once(ranks: list[tuple[int, ...]], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Plan('wrong', GRAPH, tuple(VirtualRank(*rank) for rank in enumerate(ranks)))


@pytest.mark.parametrize('device', [-1, 10_000])
def test_devices_have_numbers_within_reason(device: int) -> None:
    stages = tuple(range(GRAPH.stages))
    with pytest.raises(PlanError, match=f'are on device {device}; devices are numbered from 0'):
        Plan('wrong', GRAPH, (VirtualRank(device, stages),))


@pytest.mark.parametrize('order', [
    ((0, 1, 2), (3, 4)), ((0, 1, 2), (3, 4, 5, 4)), ((0, 1, 2), (3, 4, 5, 0)), ((), (3, 4, 5))])
def test_an_order_lists_each_stage_of_its_device_once(order: tuple[tuple[int, ...], ...]) -> None:
    wrong = 0 if not order[0] else 1
    with pytest.raises(PlanError, match=rf'order of device {wrong} .* it holds .*; list each'):
        replace(full_split(GRAPH, 2), order=order)
    assert replace(full_split(GRAPH, 2), order=((1, 2, 0), (5, 3, 4))).order_on(1) == (5, 3, 4)


def test_orders_of_plans_are_united_where_they_do_not_contradict() -> None:
    later_first = replace(ordered(0, 1, 2), order=())
    assert later_first.order_on(0) == (2, 1, 0)
    assert united_order({0: later_first, 1: later_first}, 0) == ()
    assert united_order({0: ordered(1, 2, 0)}, 0) == (1, 2, 0)
    assert united_order({0: ordered(1, 0), 1: ordered(2, 1)}, 0) == (2, 1, 0)
    assert united_order({0: later_first, 1: ordered(0, 1, 2)}, 0) == (0, 1, 2)
    with pytest.raises(PlanError, match=r'slot 2 .* device 0 in the order \(2, 1\)'):
        united_order({0: ordered(0, 1, 2), 1: later_first, 2: ordered(2, 1)}, 0)
    with pytest.raises(PlanError, match=r'slot 7 .* device 0 in the order \(2, 0\), which'):
        united_order({5: ordered(0, 1), 6: ordered(1, 2), 7: ordered(2, 0)}, 0)
