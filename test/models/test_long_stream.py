"""A session without end: constant memory, and no drift from a fresh stream with the same window."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch
from families import model_of, noise, small, text
from torch import Tensor

from physis_core.models.protocol import StageModel
from physis_core.models.registry import ModelSpec
from physis_core.runtime.kv_pool import KvPool, Row

TINY = {'heads': 1, 'head_dim': 16, 'blocks': 1, 'ffn': 16, 'channels': 2, 'height': 2, 'width': 4,
        'latents': 1, 'window': 3, 'sinks': 1, 'steps': 1, 'text_tokens': 2, 'text_dim': 8}
FAMILIES = {'wan': {'freq_dim': 16}, 'ltx': {},
            'h3': {'dim': 16, 'freq_dim': 16, 'time_inner': 8, 'time_dim': 8, 'rope_freqs': 2}}


def tiny(family: str) -> ModelSpec:
    return small(family, **TINY, **FAMILIES[family])


class OneStep:
    """A stream of one step and one block, its history in a pool."""

    def __init__(self, model: StageModel) -> None:
        self.model = model
        self.description = model.description
        self.pool = KvPool(self.description.graph, self.description.kv_chunk, entries=1)
        self.pool.open(0, [(0, 0)])
        self._context = [model.context(text(model))]
        self._step = torch.tensor([0])
        self._condition = torch.zeros(1, *self.description.condition.shape)

    def chunk(self, chunk: int, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The clean latents of a chunk, and the keys and values that it leaves."""
        row = Row(0, chunk, 0)
        history = self.pool.history(0, [row])
        hidden = self.model.embed(latent, self._condition, self._step)
        hidden = self.model.block(0, hidden, self._step, history, self._context)
        assert history.keys is not None and history.values is not None
        self.pool.write(row, 0, history.keys[0], history.values[0])
        clean = self.model.step_update(hidden, latent, self._condition, latent, self._step)
        return clean, history.keys[0].clone(), history.values[0].clone()


@pytest.mark.timeout(600)  # 10 s on a quiet machine
@pytest.mark.parametrize(('family', 'chunks'), [('wan', 10_000), ('ltx', 500), ('h3', 500)])
def test_a_long_stream_neither_grows_nor_drifts(family: str, chunks: int) -> None:
    torch.set_num_threads(1)
    model = model_of(tiny(family))
    stream = OneStep(model)
    graph = model.description.graph
    written: dict[int, tuple[Tensor, Tensor]] = {}
    latent = noise(model.description, 0)[None]
    resident, tensors = [], []
    for chunk in range(chunks):
        latent, keys, values = stream.chunk(chunk, latent + 0.5)  # each made of the one before
        written[chunk] = keys, values
        written.pop(chunk - graph.window_chunks - 1 if (
            chunk - graph.window_chunks - 1 >= graph.sink_chunks) else -1, None)
        if chunk in (chunks // 5, chunks - 1):
            gc.collect()
            resident.append(psutil.Process().memory_info().rss)
            tensors.append(sum(issubclass(type(item), Tensor) for item in gc.get_objects()))
    assert latent.isfinite().all() and latent.std() > 0.01
    assert tensors[1] <= tensors[0]
    assert resident[1] - resident[0] < 8e6

    # The same window in a fresh stream, at the earliest chunk that fills the ring like the last.
    last = chunks
    early = graph.history_slots + (last - graph.history_slots) % graph.window_chunks
    fresh = OneStep(model)
    for then, now in zip(graph.history(early), graph.history(last), strict=True):
        fresh.pool.write(Row(0, then, 0), 0, *written[now])
    assert graph.positions(early) == graph.positions(last)
    assert max(graph.positions(last)) == graph.history_slots
    ours, theirs = stream.chunk(last, latent), fresh.chunk(early, latent)
    assert torch.equal(ours[0], theirs[0])
