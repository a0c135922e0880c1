"""A stream attends to what its graph says, wherever the keys lie and however long it lasts."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, ChunkByChunk, condition, model_of, noise, small, text

from physis_core.models.protocol import StageModel
from physis_core.models.registry import build
from physis_core.runtime.kv_pool import KvPool, Row

CHUNKS = 9
TOLERANCE = 1e-5


@pytest.mark.parametrize('sinks', [0, 2])
@pytest.mark.parametrize('family', FAMILIES)
def test_window_and_sinks_equal_attention_to_everything_behind_a_mask(
        family: str, sinks: int) -> None:
    window = 3
    model = model_of(small(family, window=window, sinks=sinks))

    def visible(chunk: int, other: int) -> bool:
        return other < sinks or chunk - other <= window

    def position(chunk: int, other: int) -> int:
        own = min(chunk, sinks + window)
        return other if other < sinks else own - (chunk - other)

    windowed = ChunkByChunk(model, step=1)
    everything = ChunkByChunk(model, step=1, reference=(visible, position))
    for chunk in range(CHUNKS):
        assert (windowed.next() - everything.next()).abs().max() < TOLERANCE, chunk


# DreamZero is left out: its actions count 24 to a chunk and its video 2, so their distance
# depends on the absolute position; so does H3's distance between prompt and video.
@pytest.mark.parametrize('family', ['wan', 'ltx', 'h3', 'lingbot'])
def test_positions_in_the_window_equal_positions_in_the_stream(family: str) -> None:
    window = 3
    without_prompt = {'text_tokens': 0} if family == 'h3' else {}
    rebased = ChunkByChunk(model_of(small(family, window=window, **without_prompt)), step=1)
    long_table = model_of(small(family, window=CHUNKS, **without_prompt))
    absolute = ChunkByChunk(long_table, step=1, reference=(
        lambda chunk, other: chunk - other <= window, lambda chunk, other: other))
    for chunk in range(CHUNKS):
        assert (rebased.next() - absolute.next()).abs().max() < TOLERANCE, chunk


@pytest.mark.parametrize('family', FAMILIES)
def test_rows_of_other_steps_chunks_and_prompts_do_not_touch_each_other(family: str) -> None:
    model = model_of(small(family, sinks=1))
    passes = model.description.graph.passes
    rows = [Row(0, 0, 0), Row(1, 2, 1), Row(2, 6, passes - 1)]
    together = _block(model, rows)
    for index, row in enumerate(rows):
        alone = _block(model, [row])
        assert (together[index] - alone[0]).abs().max() < TOLERANCE, row


def _block(model: StageModel, rows: list[Row]) -> torch.Tensor:
    """Block 1 on rows whose history is random but the same at every call."""
    description = model.description
    graph = description.graph
    pool = KvPool(graph, description.kv_chunk, entries=3)
    for row in rows:
        pool.open(row.stream, [(row.step, 1)])
        source = graph.kv_source_step(row.step)
        for other in graph.history(row.chunk):
            numbers = torch.Generator().manual_seed(100 * row.stream + other)
            keys, values = torch.randn(2, *description.kv_chunk.shape, generator=numbers)
            pool.write(Row(row.stream, other, source), 1, keys, values)
    steps = torch.tensor([row.step for row in rows])
    hidden = model.embed(torch.stack([noise(description, row.stream) for row in rows]),
                         torch.stack([condition(description, row.chunk) for row in rows]), steps)
    return model.block(1, hidden, steps, pool.history(1, rows),
                       [model.context(text(model, row.stream)) for row in rows])


@pytest.mark.parametrize('family', FAMILIES)
def test_a_worker_computes_the_same_with_only_its_blocks(family: str) -> None:
    spec = small(family)
    whole, part = build(spec), build(spec, [1])
    assert part.held == [1]  # type: ignore[attr-defined]
    hidden = torch.randn(1, whole.description.tokens, whole.description.dim)
    results = []
    for model in (whole, part):
        row = Row(0, 0, 1)
        pool = KvPool(model.description.graph, model.description.kv_chunk, entries=1)
        pool.open(0, [(1, 1)])
        results.append(model.block(1, hidden, torch.tensor([1]), pool.history(1, [row]),
                                   [model.context(text(model))]))
    assert torch.equal(*results)
