"""Blocks on fixed buffers: the same results as eagerly, whoever repeats them.

A recording on a CPU is the function itself: it reads and writes the fixed buffers as a graph would,
so that everything but the capture is tested here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from families import FAMILIES, small, text
from torch import Tensor

from physis_core.errors import InputError
from physis_core.graph import Task
from physis_core.models.protocol import StageModel
from physis_core.models.registry import ModelSpec, build, describe
from physis_core.models.sizes import FAMILY_OF, spec_of
from physis_core.planning.modes import MODES
from physis_core.runtime import cuda_graphs
from physis_core.runtime.boards import Observation
from physis_core.runtime.cuda_graphs import CudaRecorder, GraphedBlocks, Run
from physis_core.runtime.dispatch import Work
from physis_core.runtime.engine import Engine, EngineOptions, StreamOptions
from physis_core.runtime.executor import ModelExecutor, RunBlock
from physis_core.runtime.kv_pool import KvPool, Row
from physis_core.runtime.oracle import SequentialOracle
from physis_core.runtime.packets import ChunkState

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(),
                              reason='this machine has no CUDA device')
SPECS = [*(small(family, window=2) for family in FAMILIES),
         small('ltx', window=2, gated=True, prompt_modulation=True, text_projection=False,
               text_dim=64),
         small('wan', window=2, sinks=1), small('wan', window=0), spec_of('so101')]
NAMES = [*FAMILIES, 'ltx-2.3', 'sinks', 'no history', 'so101']
BATCH = 2


class Tape:
    """Records by keeping the function; counts how often it is repeated."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, run: Run) -> Run:
        run()

        def replay() -> None:
            self.replays += 1
            run()
        return replay


class Streams:
    """Chunk after chunk of two streams through a block, with the history of one step."""

    def __init__(self, model: StageModel, device: str = 'cpu') -> None:
        self._model = model
        self._device = device
        description = self.description = model.description
        self.pool = KvPool(description.graph, description.kv_chunk, 2, device)
        for stream in range(2):
            self.pool.open(stream, [(0, 0)])
        self._contexts = [model.context(text(model, stream)) for stream in range(2)]
        self.full = description.graph.history_slots

    def next(self, run_block: RunBlock, streams: Sequence[int], chunk: int) -> Tensor:
        """Hidden states of a chunk of each of some streams; their KV is kept."""
        rows = [Row(stream, chunk, 0) for stream in streams]
        hidden = torch.stack([noise_like(self.description.hidden.shape, stream, chunk)
                              for stream in streams])
        history = self.pool.history(0, rows)
        hidden = run_block(0, hidden.to(self._device, self.description.hidden.torch_dtype),
                           torch.zeros(len(rows), dtype=torch.int64, device=self._device), history,
                           [self._contexts[stream] for stream in streams])
        for index, row in enumerate(rows):
            self.pool.write(row, 0, history.keys[index], history.values[index])
        return hidden


def noise_like(shape: Sequence[int], *key: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * key[0] + key[1]))


def graphed(model: StageModel, streams: Streams, record: Tape | CudaRecorder,
            device: str = 'cpu', max_batch: int = BATCH) -> GraphedBlocks:
    blocks = GraphedBlocks(model, streams.pool, device, record)
    blocks.prepare([0], max_batch)
    return blocks


@pytest.mark.parametrize('spec', SPECS, ids=NAMES)
def test_fixed_buffers_give_what_eager_calls_give(spec: ModelSpec) -> None:
    model = build(spec)
    eager, fixed, tape = Streams(model), Streams(model), Tape()
    blocks = graphed(model, fixed, tape)
    assert (blocks.recorded, blocks.refusal) == ([(0, 1), (0, 2)], '')
    results = []
    for chunk in range(eager.full + 4):
        for members in ([0, 1], [1], [0]) if chunk % 2 else ([1, 0], [1], [0]):
            expected = eager.next(model.block, members, chunk)
            results.append((fixed.next(blocks.run, members, chunk), expected))
    # All of them at the end: what a call returned is not what the next one overwrites.
    assert all(torch.allclose(got, expected, atol=1e-6) for got, expected in results)
    for kept, expected in ((fixed.pool._keys, eager.pool._keys),
                           (fixed.pool._values, eager.pool._values)):
        # Place 0 is where an eager row lays its own chunk.
        assert torch.allclose(kept[:, 1:], expected[:, 1:], atol=1e-6)
    assert tape.replays == 3 * 4  # with full windows alone


@pytest.mark.parametrize('spec', [*(spec_of(size) for size in FAMILY_OF), *SPECS[:-1]],
                         ids=[*FAMILY_OF, *NAMES[:-1]])
def test_no_block_looks_at_values_or_leaves_its_device(spec: ModelSpec) -> None:
    """As while a graph is recorded: on the meta device both are errors, and full size is free."""
    with torch.device('meta'):
        model = build(spec, [1])
        pool = KvPool(model.description.graph, model.description.kv_chunk, 1, 'meta')
    blocks = GraphedBlocks(model, pool, 'meta', Tape())
    blocks.prepare([1], BATCH)
    assert (blocks.recorded, blocks.refusal) == ([(1, 1), (1, 2)], '')


@pytest.mark.parametrize('family', FAMILIES)
def test_an_executor_on_fixed_buffers_agrees_with_the_sequential_loop(family: str) -> None:
    """As a host on a GPU puts it together; `cpu:0` is a place that is not the default one."""
    model = build(small(family, window=2))
    graph = model.description.graph
    stages = [graph.step_block(stage) for stage in range(graph.stages)]
    arrays = observation_of(model)
    tape = Tape()
    pool = KvPool(graph, model.description.kv_chunk, len(stages))
    blocks = GraphedBlocks(model, pool, 'cpu', tape)
    blocks.prepare(range(graph.blocks), 1)
    executor = ModelExecutor(model, pool, lambda stream: Observation(1, 0, 0, arrays), 'cpu:0',
                             blocks.run)
    executor.open(0, 7, stages, text(model))
    oracle = SequentialOracle(model, 7, 0, text(model))
    for chunk in range(6):
        state = ChunkState(0, 0, chunk, observation_ids=[-1] * graph.steps)
        for state.stage in range(graph.stages):
            task = Task(chunk, *graph.step_block(state.stage))
            executor.run([Work(0, 0, task, 0, payload=state)], 0, 0)
            if state.stage == graph.output_stage:
                outputs = state.outputs
        for name, array in oracle.next_chunk([arrays], [0.0]).items():
            assert np.abs(outputs[name].numpy() - array).max() < 1e-5
    assert tape.replays > graph.stages


def observation_of(model: StageModel) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(0)
    return {name: numbers.standard_normal(shape.shape).astype(np.float32)
            for name, shape in model.description.observation.items()}


def test_batches_that_have_no_graph_run_eagerly() -> None:
    model = build(small('wan', window=2))
    streams, eager, tape = Streams(model), Streams(model), Tape()
    blocks = graphed(model, streams, tape, max_batch=1)
    for chunk in range(4):
        expected = eager.next(model.block, [0, 1], chunk)
        assert torch.allclose(streams.next(blocks.run, [0, 1], chunk), expected, atol=1e-6)
    assert tape.replays == 0
    streams.next(blocks.run, [0], 4)
    assert tape.replays == 1
    # One window is full, the other has just begun.
    rows = [Row(0, 4, 0), Row(1, 1, 0)]
    assert not streams.pool.history(0, rows).full


def test_a_model_that_cannot_be_recorded_runs_eagerly_and_says_why() -> None:
    def refuse(run: Run) -> Run:
        raise RuntimeError('operation not permitted when stream is capturing\nmore')

    model = build(small('wan', window=2))
    streams, eager = Streams(model), Streams(model)
    blocks = GraphedBlocks(model, streams.pool, 'cpu', refuse)
    blocks.prepare([0], BATCH)
    assert blocks.recorded == []
    assert blocks.refusal == 'operation not permitted when stream is capturing'
    for chunk in range(4):
        expected = eager.next(model.block, [0], chunk)
        assert torch.equal(streams.next(blocks.run, [0], chunk), expected)


def test_contexts_of_other_kinds_are_refused() -> None:
    model = build(spec_of('so101'))
    model.context = lambda prompt: ['a list']  # type: ignore[method-assign]
    blocks = graphed(model, Streams(build(spec_of('so101'))), Tape())
    assert blocks.recorded == [] and 'holds a list' in blocks.refusal


def test_the_number_of_graphs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, 'MAX_GRAPHS', 3)
    model = build(small('wan', window=2))
    blocks = GraphedBlocks(model, Streams(model).pool, 'cpu', Tape())
    blocks.prepare([0, 1], 4)
    assert blocks.recorded == [(0, 1), (0, 2), (1, 1)]


def test_an_engine_needs_a_gpu_for_every_device() -> None:
    spec = small('wan')
    plan = MODES['full_split'](describe(spec).graph, 7)
    missing = torch.cuda.device_count()
    if missing >= 7:
        pytest.skip('this machine has as many GPUs as any plan needs here')
    with pytest.raises(InputError, match=f'7 devices and this host has {missing} GPUs'):
        Engine(spec, plan, options=EngineOptions(compute='cuda'))
    with pytest.raises(InputError, match='`nccl` is between GPUs; compute on `cuda`'):
        Engine(spec, replace(plan, link='nccl'))
    with pytest.raises(InputError, match='choose cpu or cuda'):
        EngineOptions(compute='tpu')


# -- on a GPU --------------------------------------------------------------------------------------


@on_a_gpu
@pytest.mark.parametrize('spec', SPECS, ids=NAMES)
def test_graphs_on_a_gpu_give_what_eager_calls_give_there(spec: ModelSpec) -> None:
    with torch.device('cuda'):
        model = build(spec)
    eager, fixed = Streams(model, 'cuda'), Streams(model, 'cuda')
    blocks = graphed(model, fixed, CudaRecorder('cuda'), 'cuda')
    assert (blocks.recorded, blocks.refusal) == ([(0, 1), (0, 2)], '')
    with torch.inference_mode():
        for chunk in range(eager.full + 4):
            for members in ([0, 1], [1], [0]):
                got = fixed.next(blocks.run, members, chunk)
                expected = eager.next(model.block, members, chunk)
                assert (got - expected).abs().max() < 1e-3


def largest_error(spec: ModelSpec, engine: Engine) -> float:
    """Difference between five chunks of a stream and the sequential loop on the CPU."""
    model = build(spec)
    oracle = SequentialOracle(model, 0, 0, text(model))
    observation = observation_of(model)
    stream = engine.open_stream(StreamOptions(prompt=text(model)))
    if observation:
        stream.observe(observation, time.monotonic_ns())
    error = 0.0
    for _ in range(5):
        chunk = stream.next_chunk(60.0)
        assert chunk is not None
        for name, array in oracle.next_chunk([observation], [0.0]).items():
            error = max(error, float(np.abs(chunk.outputs[name] - array).max()))
    return error


@on_a_gpu
@pytest.mark.parametrize('family', FAMILIES)
def test_an_engine_on_a_gpu_agrees_with_the_sequential_loop_on_the_cpu(family: str) -> None:
    spec = small(family, window=2)
    plan = MODES['sequential'](describe(spec).graph, 1)
    with Engine(spec, plan, options=EngineOptions(compute='cuda')) as engine:
        assert largest_error(spec, engine) < 1e-2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='this machine has not two CUDA devices')
def test_two_gpus_hand_on_over_nccl() -> None:
    spec = small('wan', window=2)
    plan = replace(MODES['full_split'](describe(spec).graph, 2), link='nccl')
    with Engine(spec, plan, options=EngineOptions(compute='cuda')) as engine:
        assert largest_error(spec, engine) < 1e-2
