"""What a batch reads and when; one that fails leaves its chunks as they were."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch

from physis_core.graph import Task
from physis_core.models.registry import ModelSpec, build
from physis_core.runtime.boards import Observation
from physis_core.runtime.dispatch import Work
from physis_core.runtime.executor import ModelExecutor
from physis_core.runtime.kv_pool import KvPool
from physis_core.runtime.packets import ChunkState

SOUND, BROKEN = 0, 1


def executor_of(fault: str) -> ModelExecutor:
    """Two streams; the second meets the mistake."""
    model = build(ModelSpec('faulty_model', {'fault': fault}))
    graph = model.description.graph

    def observe(stream: int) -> Observation:
        now_ns = time.monotonic_ns()
        return Observation(1, now_ns, now_ns, {'joints': np.full(6, stream, np.float32)})

    executor = ModelExecutor(model, KvPool(graph, model.description.kv_chunk, 8), observe)
    for stream in (SOUND, BROKEN):
        executor.open(stream, 0, [graph.step_block(stage) for stage in range(graph.stages)],
                      {'mark': np.array([stream == BROKEN], np.float32)})
    return executor


def play(executor: ModelExecutor, states: list[ChunkState]) -> np.ndarray:
    """All stages of one chunk each; when the batch fails, the first goes on alone."""
    for step in range(2):
        for block in range(2):
            works = [Work(state.stream, 1, Task(0, step, block), 0, payload=state)
                     for state in states]
            try:
                executor.run(works, 0, 0)
            except Exception:
                states = states[:1]
                executor.run(works[:1], 0, 0)
    (positions,) = states[0].outputs.values()
    return positions.numpy()


@pytest.mark.parametrize('fault', ['embed', 'block', 'extend', 'step', 'decode', 'output'])
def test_the_sound_chunk_comes_out_as_if_it_had_been_alone(fault: str) -> None:
    def chunk(stream: int) -> ChunkState:
        return ChunkState(stream, 1, 0, observation_ids=[-1, -1])

    with torch.inference_mode():
        alone = play(executor_of(fault), [chunk(SOUND)])
        together = play(executor_of(fault), [chunk(SOUND), chunk(BROKEN)])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(('late_binding', 'read'), [(True, [1, 2]), (False, [1, 1])])
def test_each_step_reads_the_newest_observation_only_if_the_model_says_so(
        late_binding: bool, read: list[int]) -> None:
    """Every look brings a newer one, whose joints say which it is."""
    model = build(ModelSpec('faulty_model', {'late_binding': late_binding}))
    graph = model.description.graph
    given = itertools.count(1)

    def observe(stream: int) -> Observation:
        identity = next(given)
        return Observation(identity, 10 * identity, 10 * identity + 1,
                           {'joints': np.full(6, identity, np.float32)})

    conditions: list[float] = []
    embed = model.embed

    def watched(latents: torch.Tensor, condition: torch.Tensor, steps: torch.Tensor
                ) -> torch.Tensor:
        conditions.append(float(condition.mean()))
        return embed(latents, condition, steps)

    model.embed = watched  # type: ignore[method-assign]
    executor = ModelExecutor(model, KvPool(graph, model.description.kv_chunk, 4), observe)
    executor.open(0, 0, [graph.step_block(stage) for stage in range(graph.stages)],
                  {'mark': np.zeros(1, np.float32)})
    state = ChunkState(0, 1, 0, observation_ids=[-1, -1])
    with torch.inference_mode():
        play(executor, [state])
    assert state.observation_ids == read
    assert conditions == read
    assert (state.capture_ns, state.received_ns) == (10, 11)  # what the chunk began with
