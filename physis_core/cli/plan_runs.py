"""Running a plan of a real model to see how fast it is and whether it computes what it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from physis_core.errors import StreamError
from physis_core.models.protocol import ModelDescription
from physis_core.models.registry import ModelSpec, build, describe
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.planning.profile import BatchTimes, BlockGroup, Profile
from physis_core.runtime.engine import Engine, FinishedChunk, Stream, StreamOptions
from physis_core.runtime.oracle import SequentialOracle
from physis_core.units import NS_PER_MS, NS_PER_US

_TIMEOUT_S = 120.0
_SENSOR_S = 0.03
_LEAD_NS = 480 * NS_PER_MS
"""From a chunk's release to its effect: within what the demo model was trained for."""
_PACE = 1.03
"""Response is measured a little below the fastest beat: a greedy source only fills queues."""


@dataclass(frozen=True)
class Run:
    """What one run of a plan showed."""

    period_ms: float
    response_ms: float
    max_abs_error: float
    mean_batch: float


def observation_of(description: ModelDescription) -> dict[str, np.ndarray]:
    """A fixed observation of the right shapes."""
    numbers = np.random.default_rng(0)
    return {name: (numbers.integers(0, 256, spec.shape, np.uint8) if spec.dtype == 'uint8'
                   else numbers.standard_normal(spec.shape).astype(spec.dtype))
            for name, spec in description.observation.items()}


def run_plan(spec: ModelSpec, plan: Plan, chunks: int) -> Run:
    """One stream, first as fast as it goes, then paced; the first chunks are checked."""
    warm_up = plan.max_in_flight + plan.graph.history_slots
    with Engine(spec, plan) as engine:
        fast = _chunks(engine, spec, StreamOptions(period_ns=0), warm_up + chunks)
        batches = np.concatenate([log.latest() for log in engine.stage_logs()])
        finished = np.array([chunk.finished_ns for chunk in fast[warm_up:]])
        period_ns = float((finished[-1] - finished[0]) / (len(finished) - 1))
        paced = _chunks(engine, spec, StreamOptions(period_ns=round(_PACE * period_ns)),
                        warm_up + chunks // 2)
    responses = [chunk.finished_ns - chunk.release_ns for chunk in paced[warm_up:]]
    return Run(period_ns / NS_PER_MS, float(np.median(responses)) / NS_PER_MS,
               largest_error(spec, fast[:warm_up]),
               float(1 / np.mean(1 / batches['batch'][len(batches) // 4:])))


def largest_error(spec: ModelSpec, chunks: Sequence[FinishedChunk]) -> float:
    """Largest absolute difference to the oracle over an epoch's first chunks."""
    torch.set_num_threads(1)  # as a worker has: sums depend on it
    description = describe(spec)
    observation = observation_of(description)
    oracle = SequentialOracle(build(spec), 0, chunks[0].epoch)
    error = 0.0
    for chunk in chunks:
        lead_s = (chunk.due_ns - chunk.capture_ns) / 1e9
        for name, array in oracle.next_chunk([observation], [lead_s]).items():
            error = max(error, float(np.abs(array - chunk.outputs[name]).max()))
    return error


def measured_profile(spec: ModelSpec, devices: int, chunks: int) -> Profile:
    """Stage times for batches of 1 to D, with all devices busy as they are under a plan.

    Every device runs a stream of its own; times are those of the executor alone.
    """
    description = describe(spec)
    graph = description.graph
    times = np.zeros((graph.passes, 3))
    for batch in range(1, graph.passes + 1):
        plans = [Plan('profile', graph, ranks_from_devices([device] * graph.stages),
                      batch=BatchRule(batch, across_steps=batch > 1),
                      max_in_flight=graph.passes if batch > 1 else 1)
                 for device in range(devices)]
        services = _services_us(spec, plans, batch, chunks)
        times[batch - 1] = services.mean(), np.median(services), np.percentile(services, 99)
    rising = np.maximum.accumulate(np.maximum(np.rint(times), 1), axis=0).astype(int)
    mean, median, high = (tuple(map(int, column)) for column in rising.T)
    return Profile(spec.name, 'cpu', description.dtype, 'measured', graph,
                   description.tokens * (1 + graph.history_slots),
                   (BlockGroup(graph.blocks, BatchTimes(mean, median, high)),),
                   description.hidden.nbytes)


def _services_us(spec: ModelSpec, plans: Sequence[Plan], batch: int, chunks: int) -> np.ndarray:
    """Service times of batches of that size [us], once the windows are full."""
    with Engine(spec, list(plans)) as engine:
        streams = [_opened(engine, StreamOptions(seed=slot, period_ns=0))
                   for slot in range(len(plans))]
        with sensor(spec, streams):
            for _ in range(chunks + plans[0].graph.history_slots):
                for stream in streams:
                    _next(stream)
        records = np.concatenate([log.latest() for log in engine.stage_logs()])
    steady = records[(records['batch'] == batch)
                     & (records['chunk'] >= plans[0].graph.history_slots)]
    if not len(steady):
        raise StreamError(f'no batch of {batch} ever formed; give more --chunks')
    return (steady['end_ns'] - steady['start_ns']) / NS_PER_US


def _chunks(engine: Engine, spec: ModelSpec, options: StreamOptions, count: int
            ) -> list[FinishedChunk]:
    """So many chunks of a stream of its own."""
    stream = _opened(engine, options)
    with sensor(spec, [stream]):
        chunks = [_next(stream) for _ in range(count)]
    stream.close()
    return chunks


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
