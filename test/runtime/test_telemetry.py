"""What devices and links say about themselves."""

from __future__ import annotations

import numpy as np
import pytest
from replay import TIMEOUT_S, Recorded, tiny

from physis_core.graph import KVMode, StageGraph, Task
from physis_core.models.registry import describe
from physis_core.planning.modes import full_split, streamdiffusionv2
from physis_core.runtime.engine import Engine
from physis_core.runtime.telemetry import EdgeMeter
from physis_core.runtime.virtual import VirtualModel
from physis_core.runtime.wiring import LinkKey
from physis_core.shared_block import SharedBlock

SPEC = tiny(steps=4)
DESCRIPTION = describe(SPEC)
CHUNKS = 12


def test_every_task_is_logged_once_with_its_times() -> None:
    with Engine(SPEC, full_split(DESCRIPTION.graph, 3)) as engine:
        recorded = Recorded(engine.open_stream(), DESCRIPTION)
        recorded.run(CHUNKS)
        records = np.concatenate([log.latest() for log in engine.stage_logs()])
        epoch = recorded.stream.epoch
    done = records[records['chunk'] < CHUNKS]
    tasks = {(int(one['chunk']), int(one['step']), int(one['block'])) for one in done}
    assert len(tasks) == len(done) == CHUNKS * DESCRIPTION.graph.stages
    assert set(done['epoch'].tolist()) == {epoch}
    assert (done['arrived_ns'] <= done['start_ns']).all()
    assert (done['start_ns'] <= done['end_ns']).all()


def test_a_full_pipeline_batches_its_steps() -> None:
    with Engine(SPEC, streamdiffusionv2(DESCRIPTION.graph, 1)) as engine:
        Recorded(engine.open_stream(), DESCRIPTION).run(4 * CHUNKS)
        records = engine.stage_logs()[0].latest()
    assert records['batch'].max() > 1
    for batch in np.unique(records['batch']):
        together = records[records['batch'] == batch]
        for start_ns in np.unique(together['start_ns']):  # one block, and every member once
            members = together[together['start_ns'] == start_ns]
            assert len(members) % batch == 0
            assert len(set(members['block'].tolist())) == 1
            assert len(set(members['step'].tolist())) == len(members)


@pytest.mark.parametrize('kv_mode', list(KVMode))
def test_virtual_devices_start_a_task_after_all_it_depends_on(kv_mode: KVMode) -> None:
    graph = StageGraph(3, 2, kv_mode, window_chunks=1)
    with Engine(VirtualModel(graph, 0.0, 1000.0), full_split(graph, 2)) as engine:
        stream = engine.open_stream()
        for _ in range(CHUNKS):
            assert stream.next_chunk(TIMEOUT_S) is not None
        records = np.concatenate([log.latest() for log in engine.stage_logs()])
    times = {Task(int(one['chunk']), int(one['step']), int(one['block'])):
             (int(one['start_ns']), int(one['end_ns'])) for one in records}
    for task, (start_ns, _) in times.items():
        assert all(times[before][1] <= start_ns for before in graph.dependencies(task))


def test_links_count_messages_bytes_and_waiting() -> None:
    with Engine(SPEC, full_split(DESCRIPTION.graph, 2)) as engine:
        Recorded(engine.open_stream(), DESCRIPTION).run(CHUNKS)
        meters = engine.edge_meters()
        assert set(meters) == {LinkKey(-1, 0, 'token'), LinkKey(0, 1, 'chunk'),
                               LinkKey(1, -1, 'output')}
        hop = meters[LinkKey(0, 1, 'chunk')]
        assert hop.messages >= CHUNKS
        assert hop.payload_bytes >= hop.messages * DESCRIPTION.hidden.nbytes
        assert hop.mean_wait_ns > 0
        reader = EdgeMeter(SharedBlock.attach(hop.block.address))  # as another process would
        assert reader.messages >= CHUNKS


def test_a_meter_at_zero_says_zero() -> None:
    meter = EdgeMeter.create()
    assert (meter.messages, meter.payload_bytes, meter.refusals, meter.mean_wait_ns) == (0, 0, 0, 0)
    meter.refused()
    assert meter.refusals == 1
