"""The kernel that attends is the fastest that can, and torch's own choice where none gains."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional

from physis_core.models.registry import describe
from physis_core.models.sizes import spec_of
from physis_core.runtime import attention_backend
from physis_core.runtime.attention_backend import (
    BY_TORCH,
    AttentionChoice,
    attending_by,
    candidates,
    fastest,
)


def chosen(monkeypatch: pytest.MonkeyPatch, times_s: dict[str, float | None]) -> AttentionChoice:
    """The choice where a call takes so long by each kernel (None: it cannot run it)."""
    now_s, active = 0.0, ''

    @contextmanager
    def attending(name):
        nonlocal active
        active = name
        yield

    def call() -> None:
        nonlocal now_s
        spent_s = times_s[active]
        if spent_s is None:
            raise RuntimeError('No available kernel. Aborting execution.')
        now_s += spent_s

    monkeypatch.setattr(attention_backend, 'attending_by', attending)
    monkeypatch.setattr(attention_backend.time, 'perf_counter', lambda: now_s)
    return fastest(call, times_s, lambda: None)


@pytest.mark.parametrize(('times_s', 'name'), [
    ({BY_TORCH: 0.010, 'flash': 0.005, 'efficient': 0.004, 'cudnn': None}, 'efficient'),
    ({BY_TORCH: 0.010, 'flash': 0.0099}, BY_TORCH),  # within noise
    ({BY_TORCH: 0.010, 'flash': None, 'efficient': None}, BY_TORCH),
    ({BY_TORCH: 9.0, 'flash': 3.0}, 'flash')])  # first calls beyond the budget
def test_the_fastest_that_can(
        monkeypatch: pytest.MonkeyPatch, times_s: dict[str, float | None], name: str) -> None:
    choice = chosen(monkeypatch, times_s)
    assert choice.name == name
    expected = {each: None if took is None else pytest.approx(1000 * took)
                for each, took in times_s.items()}
    assert choice.times_ms == expected


def test_what_torch_itself_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match='No available kernel'):
        chosen(monkeypatch, {BY_TORCH: None, 'flash': 0.1})


def test_kernels_of_this_device_are_really_tried() -> None:
    queries = torch.randn(1, 2, 8, 16)
    choice = fastest(lambda: functional.scaled_dot_product_attention(queries, queries, queries),
                     [BY_TORCH, 'flash', 'math', 'cudnn'], lambda: None, budget_s=0.01)
    assert choice.times_ms is not None
    assert choice.times_ms['flash'] is not None and choice.times_ms['math'] is not None
    assert choice.times_ms['cudnn'] is None  # queries are on the CPU
    with choice.applied():
        functional.scaled_dot_product_attention(queries, queries, queries)
    with pytest.raises(RuntimeError), attending_by('cudnn'):
        functional.scaled_dot_product_attention(queries, queries, queries)


def test_scores_that_fill_the_memory_are_not_written_out() -> None:
    assert 'math' in candidates(describe(spec_of('so101')), 8)
    assert 'math' not in candidates(describe(spec_of('wan2.1-1.3b')), 1)
