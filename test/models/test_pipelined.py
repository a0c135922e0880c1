"""The engine runs every family as the plain sequential loop does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from batches import formed
from families import small, text

from physis_core.graph import KVMode
from physis_core.models.protocol import TensorSpec, lead_s
from physis_core.models.registry import build, describe
from physis_core.planning.modes import MODES
from physis_core.planning.plan import BatchRule
from physis_core.runtime.engine import Engine, StreamOptions
from physis_core.runtime.oracle import SequentialOracle
from physis_core.runtime.stream import FinishedChunk, Stream

Arrays = Mapping[str, np.ndarray]
CHUNKS = 6  # more than sinks and window, so that the ring goes round
DEVICES = 3
TIMEOUT_S = 60.0
BATCHED_TOLERANCE = 1e-4
RUNS = [*((family, mode) for family in ('wan', 'ltx', 'h3')
          for mode in (KVMode.SAME_STEP, KVMode.CLEAN)),
        ('lingbot', KVMode.CLEAN), ('dreamzero', KVMode.CLEAN)]


@pytest.mark.parametrize('rule', [BatchRule(), BatchRule(4, across_steps=True)])
@pytest.mark.parametrize(('family', 'kv_mode'), RUNS)
def test_a_pipelined_family_is_the_sequential_oracle(family: str, kv_mode: KVMode,
                                                     rule: BatchRule) -> None:
    """Bit for bit where nothing is batched; within rounding where rows share a call."""
    spec = small(family, kv_mode=kv_mode.value, window=2, sinks=1)
    description = describe(spec)
    model = build(spec)
    plans = [replace(mode(description.graph, DEVICES), batch=rule) for mode in MODES.values()]
    with Engine(spec, plans) as engine:
        streams = [engine.open_stream(StreamOptions(
            seed=slot, lead_ns=40_000_000, prompt=text(model, slot))) for slot in range(len(plans))]
        runs = [Run(stream, description.observation) for stream in streams]
        for run in runs:  # one after the other, so that histories of unlike lengths meet
            run.observe()
            run.take()
        for _ in range(CHUNKS - 1):
            for run in runs:
                run.take()
        for slot, (plan, run) in enumerate(zip(plans, runs, strict=True)):
            oracle = SequentialOracle(model, slot, run.epoch, text(model, slot))
            allowed = 0.0 if rule.max_batch == 1 else BATCHED_TOLERANCE
            assert run.largest_error(oracle) <= allowed, plan.mode
        seen = formed(engine, description.graph)
        may_batch = rule.max_batch > 1
        assert (seen.largest > 1, seen.mixed > 0) == (may_batch, may_batch)


class Run:
    """A stream, what it was given and what it gave."""

    def __init__(self, stream: Stream, observation: Mapping[str, TensorSpec]) -> None:
        self._stream = stream
        self._observation = observation
        self._given: dict[int, tuple[Arrays, int]] = {}
        self._chunks: list[FinishedChunk] = []

    @property
    def epoch(self) -> int:
        """The epoch of the chunks taken."""
        return self._chunks[0].epoch

    def observe(self) -> None:
        """Give a random observation, if the model takes any."""
        if not self._observation:
            return
        numbers = np.random.default_rng(len(self._given))
        arrays = {name: numbers.standard_normal(spec.shape).astype(np.float32)
                  for name, spec in self._observation.items()}
        capture_ns = time.monotonic_ns()
        self._given[self._stream.observe(arrays, capture_ns)] = arrays, capture_ns

    def take(self) -> None:
        """Take the next chunk and give an observation."""
        chunk = self._stream.next_chunk(TIMEOUT_S)
        assert chunk is not None, 'no chunk came'
        assert chunk.chunk == len(self._chunks)
        self._chunks.append(chunk)
        self.observe()

    def largest_error(self, oracle: SequentialOracle) -> float:
        """Largest difference between the chunks and the oracle's on the same observations."""
        error = 0.0
        for chunk in self._chunks:
            read = [self._given.get(identity, ({}, chunk.started_ns))
                    for identity in chunk.observation_ids]
            expected = oracle.next_chunk(
                [arrays for arrays, _ in read],
                [lead_s(chunk.due_ns, capture) for _, capture in read])
            assert expected.keys() == chunk.outputs.keys()
            for name, array in expected.items():
                assert np.abs(array).max() > 0.1
                error = max(error, float(np.abs(array - chunk.outputs[name]).max()))
        return error

