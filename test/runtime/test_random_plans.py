"""Any assignment of stages to devices, in any order, with any buffers: the oracle's bits.

That chunks come at all shows that no order and no buffer keeps a plan from making progress.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay import Recorded, largest_error, tiny

from physis_core.graph import KVMode
from physis_core.models.registry import describe
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.runtime.engine import Engine, StreamOptions

DEVICES = 3


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[dict[str, object], list[Plan]]:
    """A model and two or three plans for it, which run at the same time."""
    options = {'kv_mode': draw(st.sampled_from([mode.value for mode in KVMode])),
               'steps': draw(st.integers(1, 3)), 'blocks': draw(st.integers(1, 3)),
               'window': draw(st.integers(1, 3)), 'sinks': draw(st.integers(0, 2)),
               'renoise': draw(st.booleans()), 'late_binding': draw(st.booleans())}
    graph = describe(tiny(**options)).graph
    batch = draw(st.sampled_from([BatchRule(), BatchRule(4, across_steps=True),
                                  BatchRule(3, wait_us=500)]))
    # Of all stages, for every device: plans that share one do not contradict each other.
    order = draw(st.none() | st.permutations(range(graph.stages)))
    plans = []
    for _ in range(draw(st.integers(2, 3))):
        device_of = draw(st.lists(st.integers(0, DEVICES - 1), min_size=graph.stages,
                                  max_size=graph.stages))
        plan = Plan('random', graph, ranks_from_devices(device_of), batch=batch,
                    slots_per_edge=draw(st.integers(1, 3)), max_in_flight=draw(st.integers(1, 7)))
        plans.append(plan if order is None else replace(plan, order=tuple(
            tuple(stage for stage in order if plan.device_of(stage) == device)
            for device in range(plan.devices))))
    return options, plans


@given(scenarios())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_random_plans_match_the_oracle(scenario: tuple[dict[str, object], list[Plan]]) -> None:
    options, plans = scenario
    spec = tiny(**options)
    with Engine(spec, plans) as engine:
        streams = [Recorded(engine.open_stream(StreamOptions(seed=slot)), describe(spec), slot)
                   for slot in range(len(plans))]
        chunks = [recorded.run(7) for recorded in streams]
    tolerance = 0.0 if plans[0].batch.max_batch == 1 else 2e-5
    for recorded, taken in zip(streams, chunks, strict=True):
        assert largest_error(spec, recorded, taken) <= tolerance
