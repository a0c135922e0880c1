"""Running a plan of a real model to see how fast it is and whether it computes what it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from physis_core.errors import StreamError
from physis_core.models.protocol import ModelDescription, lead_s
from physis_core.models.registry import ModelSpec, build, describe
from physis_core.planning.modes import full_split
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.planning.profile import BatchTimes, BlockGroup, Profile
from physis_core.runtime.engine import Engine, FinishedChunk, Stream, StreamOptions
from physis_core.runtime.oracle import SequentialOracle
from physis_core.units import NS_PER_MS, NS_PER_US

_TIMEOUT_S = 120.0
_SENSOR_S = 0.03
_LEAD_NS = 480 * NS_PER_MS
"""From a chunk's release to its effect: within what the demo model was trained for."""
_PROFILE_S = 1.5
_PROFILE_CHUNKS = 4
"""A batch size is measured for so long and for so many chunks at least."""
_HOP_CHUNKS = 6  # and not the first: it is cold
_CHECKED_CHUNKS = 3
"""The oracle follows a run for so many chunks at least."""


@dataclass(frozen=True)
class Run:
    """What one run of a plan showed.

    Attributes:
        period_ms: mean interval between finished chunks.
        response_ms: from when the first stage reads an observation; median.
        max_abs_error: to the oracle, over the first chunks.
        checked_chunks: how many those are.
        mean_batch: tasks in a batch, once in full swing.
        busiest_device: part of the time in which the busiest device computes.
    """

    period_ms: float
    response_ms: float
    max_abs_error: float
    checked_chunks: int
    mean_batch: float
    busiest_device: float


def observation_of(description: ModelDescription) -> dict[str, np.ndarray]:
    """A fixed observation of the right shapes."""
    numbers = np.random.default_rng(0)
    return {name: (numbers.integers(0, 256, spec.shape, np.uint8) if spec.dtype == 'uint8'
                   else numbers.standard_normal(spec.shape).astype(spec.dtype))
            for name, spec in description.observation.items()}


def run_plan(spec: ModelSpec, plan: Plan, chunks: int, check_s: float) -> Run:
    """One stream as fast as it goes, once it is in full swing.

    Its outputs are compared with the oracle's afterwards, from the first on for about ``check_s``.
    """
    warm_up = plan.max_in_flight + plan.graph.history_slots
    with Engine(spec, plan) as engine:
        stream = _opened(engine, StreamOptions(period_ns=0))
        with sensor(spec, [stream]):
            finished = [_next(stream) for _ in range(warm_up + chunks)]
        logs = [log.latest() for log in engine.stage_logs()]
    steady = finished[warm_up:]
    period_ns = (steady[-1].finished_ns - steady[0].finished_ns) / (len(steady) - 1)
    responses = [chunk.finished_ns - chunk.started_ns for chunk in steady]
    error, checked = largest_error(spec, finished, check_s)
    tasks = [log[(log['start_ns'] >= steady[0].finished_ns)
                 & (log['end_ns'] <= steady[-1].finished_ns)] for log in logs]
    return Run(period_ns / NS_PER_MS, float(np.median(responses)) / NS_PER_MS, error, checked,
               float(1 / np.mean(1 / np.concatenate(tasks)['batch'])), max(map(_busy, tasks)))


def _busy(tasks: np.ndarray) -> float:
    """Part of the time in which a device computes, while it ran these."""
    if not len(tasks):
        return 0.0
    batches = {(task['start_ns'], task['end_ns']) for task in tasks}
    return float(sum(end_ns - start_ns for start_ns, end_ns in batches)
                 / (tasks['end_ns'].max() - tasks['start_ns'].min()))


def largest_error(spec: ModelSpec, chunks: Sequence[FinishedChunk], check_s: float
                  ) -> tuple[float, int]:
    """Largest absolute difference to the oracle over the first of an epoch's chunks; how many."""
    torch.set_num_threads(1)  # as a worker has: sums depend on it
    description = describe(spec)
    observation = observation_of(description)
    oracle = SequentialOracle(build(spec), 0, chunks[0].epoch)
    error = 0.0
    checked = 0
    until_s = time.monotonic() + check_s
    for chunk in chunks:
        if checked >= _CHECKED_CHUNKS and time.monotonic() > until_s:
            break
        checked += 1
        lead = lead_s(chunk.due_ns, chunk.capture_ns)
        for name, array in oracle.next_chunk([observation], [lead]).items():
            error = max(error, float(np.abs(array - chunk.outputs[name]).max()))
    return error, checked


def measured_profile(spec: ModelSpec, devices: int) -> Profile:
    """Stage times of every block for batches of 1 to D, with all devices busy as under a plan.

    Every device runs a stream of its own; times are those of the executor alone.
    """
    description = describe(spec)
    graph = description.graph
    times = np.zeros((3, graph.passes, graph.blocks))
    for batch in range(1, graph.passes + 1):
        plans = [Plan('profile', graph, ranks_from_devices([device] * graph.stages),
                      batch=BatchRule(batch, across_steps=batch > 1),
                      max_in_flight=graph.passes if batch > 1 else 1)
                 for device in range(devices)]
        records = _steady_records(spec, plans, batch)
        services = (records['end_ns'] - records['start_ns']) / NS_PER_US
        for block in range(graph.blocks):
            own = services[records['block'] == block]
            times[:, batch - 1, block] = own.mean(), np.median(own), np.percentile(own, 99)
    whole = np.maximum(np.rint(np.maximum.accumulate(times, axis=1)), 1).astype(int)
    groups = tuple(BlockGroup(1, BatchTimes(*(tuple(map(int, column)) for column in block)))
                   for block in np.moveaxis(whole, 2, 0))
    return Profile(spec.name, 'cpu', description.dtype, 'measured', graph,
                   description.tokens * (1 + graph.history_slots), groups,
                   description.hidden.nbytes)


def _steady_records(spec: ModelSpec, plans: Sequence[Plan], batch: int) -> np.ndarray:
    """Stage records of batches of that size, once the windows are full."""
    full = plans[0].graph.history_slots
    with Engine(spec, list(plans)) as engine:
        streams = [_opened(engine, StreamOptions(seed=slot, period_ns=0))
                   for slot in range(len(plans))]
        with sensor(spec, streams):
            for _ in range(full + plans[0].max_in_flight):
                for stream in streams:
                    _next(stream)
            until_s = time.monotonic() + _PROFILE_S
            done = 0
            while done < _PROFILE_CHUNKS or time.monotonic() < until_s:
                for stream in streams:
                    _next(stream)
                done += 1
        records = np.concatenate([log.latest() for log in engine.stage_logs()])
    steady: np.ndarray = records[(records['batch'] == batch) & (records['chunk'] >= full)]
    if len(set(steady['block'])) < plans[0].graph.blocks:
        raise StreamError(f'no batch of {batch} formed at some block; give the machine some rest')
    return steady


def measured_hop_us(spec: ModelSpec, devices: int) -> float:
    """From the end of a stage to the start of the next on another, idle device [us]; median."""
    if devices < 2:
        return 0.0
    graph = describe(spec).graph
    plan = replace(full_split(graph, devices), max_in_flight=1)
    with Engine(spec, plan) as engine:
        stream = _opened(engine, StreamOptions(period_ns=0))
        with sensor(spec, [stream]):
            for _ in range(_HOP_CHUNKS):
                _next(stream)
        logs = [log.latest() for log in engine.stage_logs()]
    hops = []
    for sender, receiver in pairwise(logs[:plan.devices]):
        for chunk in range(1, _HOP_CHUNKS):
            end_ns = sender['end_ns'][sender['chunk'] == chunk].max()
            hops.append(receiver['start_ns'][receiver['chunk'] == chunk].min() - end_ns)
    return float(np.median(hops)) / NS_PER_US


def _opened(engine: Engine, options: StreamOptions) -> Stream:
    return engine.open_stream(replace(options, queue_chunks=64, lead_ns=_LEAD_NS))


@contextmanager
def sensor(spec: ModelSpec, streams: Sequence[Stream]) -> Iterator[None]:
    """Observations at a steady beat meanwhile, as a robot sends them."""
    observation = observation_of(describe(spec))
    stop = threading.Event()

    def observe() -> None:
        while not stop.wait(_SENSOR_S):
            for stream in streams:
                with suppress(StreamError):  # whoever waits for its chunks is told
                    stream.observe(observation, time.monotonic_ns())

    thread = threading.Thread(target=observe, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _next(stream: Stream) -> FinishedChunk:
    chunk = stream.next_chunk(_TIMEOUT_S)
    if chunk is None:
        raise StreamError(f'stream {stream.slot}: no chunk came within {_TIMEOUT_S:g} s')
    return chunk
