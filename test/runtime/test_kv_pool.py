"""Histories in a pool: slots, rings, sinks, batches of different lengths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from physis_core.errors import Refused
from physis_core.graph import KVMode, StageGraph
from physis_core.models.protocol import TensorSpec
from physis_core.runtime.kv_pool import KvPool, Row

SHAPE = TensorSpec((2, 1, 4))  # tokens, heads, head_dim


def marked(chunk: int, stream: int = 0) -> torch.Tensor:
    """Keys that tell which chunk of which stream they are."""
    return torch.full(SHAPE.shape, 100.0 * stream + chunk)


def fill(pool: KvPool, chunks: int, stream: int = 0, step: int = 0) -> None:
    for chunk in range(chunks):
        pool.write(Row(stream, chunk, step), 0, marked(chunk, stream), -marked(chunk, stream))


def attended(keys: torch.Tensor) -> list[list[int]]:
    """The chunk behind every place of ``[B, places * tokens, ...]``."""
    return keys[:, ::SHAPE.shape[0], 0, 0].int().tolist()


@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 15))
def test_a_row_attends_to_itself_then_to_its_history_in_slot_order(
        window: int, sinks: int, chunk: int) -> None:
    graph = StageGraph(1, 1, KVMode.SAME_STEP, window, sinks)
    pool = KvPool(graph, SHAPE, 1)
    pool.open(0, [(0, 0)])
    fill(pool, chunk)
    history = pool.history(0, [Row(0, chunk, 0)])
    keys, values, mask = history.extend(marked(chunk)[None], -marked(chunk)[None])
    assert mask is None
    assert attended(keys) == [[chunk, *graph.history(chunk)]]
    assert torch.equal(values, -keys)
    assert history.positions.tolist() == [graph.positions(chunk)]


def test_rows_with_histories_of_different_length_share_a_batch() -> None:
    graph = StageGraph(2, 1, KVMode.SAME_STEP, 3)
    pool = KvPool(graph, SHAPE, 4)
    for stream in (0, 1):
        pool.open(stream, [(0, 0), (1, 0)])
    fill(pool, 1, stream=0, step=1)
    fill(pool, 5, stream=1, step=0)
    rows = [Row(0, 1, 1), Row(1, 5, 0), Row(0, 0, 0)]
    own = torch.stack([marked(row.chunk, row.stream) for row in rows])
    history = pool.history(0, rows)
    keys, _, mask = history.extend(own, own)
    assert mask is not None
    assert mask.tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    seen = attended(keys)
    assert seen[0][:2] == [1, 0]
    assert seen[1] == [105, 103, 104, 102]
    assert seen[2][0] == 0
    assert history.positions.shape == (3, 4)


def test_memory_is_allocated_once_and_entries_come_back() -> None:
    graph = StageGraph(2, 2, KVMode.SAME_STEP, 3)
    pool = KvPool(graph, SHAPE, 4)
    size, address = pool.nbytes, pool._keys.data_ptr()
    assert size == 2 * 4 * (1 + 3) * SHAPE.nbytes
    for _ in range(10):
        pool.open(7, [(0, 0), (1, 1), (1, 0), (0, 1)])
        assert pool.free_entries == 0
        pool.close(7)
    assert (pool.free_entries, pool.nbytes, pool._keys.data_ptr()) == (4, size, address)


def test_a_stream_without_room_is_refused_and_takes_nothing() -> None:
    pool = KvPool(StageGraph(2, 2, KVMode.SAME_STEP, 1), SHAPE, 3)
    pool.open(0, [(0, 0), (1, 0)])
    with pytest.raises(Refused, match='needs 2 KV entries on this device, 1 are free'):
        pool.open(1, [(0, 1), (1, 1)])
    assert pool.free_entries == 1


def test_steps_that_read_the_same_history_share_an_entry() -> None:
    pool = KvPool(StageGraph(3, 1, KVMode.CLEAN, 2), SHAPE, 1)
    pool.open(0, [(0, 0), (1, 0), (2, 0), (3, 0)])
    assert pool.free_entries == 0


def test_without_a_window_nothing_is_kept() -> None:
    pool = KvPool(StageGraph(1, 1), SHAPE, 0)
    pool.open(0, [(0, 0)])
    fill(pool, 3)
    keys, _, mask = pool.history(0, [Row(0, 3, 0)]).extend(marked(3)[None], marked(3)[None])
    assert (attended(keys), mask) == ([[3]], None)
