"""A model with a mistake ends the stream that meets it, by name; workers and others go on."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from physis_core.errors import InputError, PhysisError, StreamError, WorkerLost
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import full_split, sequential
from physis_core.runtime.engine import Engine, EngineOptions, Stream, StreamOptions

TIMEOUT_S = 30.0
FAULTS = [
    ('encode', r'encode\(\) returned \[1\], the description says \[6\]'),
    ('embed', r'failed with ZeroDivisionError: in embed \(faulty_model.py, line \d+\)'),
    ('extend', r'history.extend\(\) was given \[1, 1, 6\], the description says \[4, 1, 6\]'),
    ('block', r'RuntimeError: shapes cannot be multiplied \(4x6 and 5x6\) \(faulty_model.py'),
    ('shape', r'block\(\) returned \[1, 6\], the description says \[4, 6\]'),
    ('step', r'step_update\(\) returned \[4, 1\], the description says \[4, 6\]'),
    ('decode', r'ValueError: cannot decode \(faulty_model.py'),
    ('name', r"decode\(\) returned \['actions'\], the description says \['positions'\]"),
    ('output', r'decode\(\) returned `positions` as \[1, 6\], the description says \[4, 6\]'),
]


def opened(engine: Engine, hit: bool) -> Stream:
    stream = engine.open_stream(StreamOptions(
        prompt={'mark': np.array([hit], np.float32)}))
    stream.observe({'joints': np.full(6, hit, np.float32)}, time.monotonic_ns())
    return stream


def refusal(engine: Engine) -> str:
    """Why no stream can be opened; empty: one could, and did nothing."""
    try:
        engine.open_stream(StreamOptions(prompt={'mark': np.zeros(1, np.float32)})).close()
    except WorkerLost as error:
        return str(error)
    return ''


def reopened(engine: Engine) -> Stream:
    """A stream, as soon as it can be opened."""
    until_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return opened(engine, False)
        except WorkerLost:
            assert time.monotonic() < until_s


@pytest.mark.parametrize(('fault', 'text'), FAULTS)
def test_a_mistake_ends_its_stream_by_name_and_nothing_else(fault: str, text: str) -> None:
    spec = ModelSpec('faulty_model', {'fault': fault})
    with Engine(spec, full_split(describe(spec).graph, 2), streams=2) as engine:
        workers = list(engine.worker_pids)
        sound = opened(engine, False)
        assert sound.next_chunk(TIMEOUT_S) is not None
        for _ in range(2):
            broken = opened(engine, True)
            with pytest.raises(StreamError, match=text) as caught:
                while broken.next_chunk(TIMEOUT_S) is not None:
                    pass
            assert not isinstance(caught.value, WorkerLost)
            assert '\n' not in str(caught.value)
        for _ in range(10):
            assert sound.next_chunk(TIMEOUT_S) is not None
        assert engine.worker_pids == workers


@pytest.mark.parametrize('fault', ['wait', 'spin'])
def test_a_model_that_never_returns_is_told_after_the_limit_and_its_worker_replaced(
        fault: str) -> None:
    spec = ModelSpec('faulty_model', {'fault': fault})
    options = EngineOptions(stall_s=0.5)
    with Engine(spec, sequential(describe(spec).graph), 2, options) as engine:
        workers = list(engine.worker_pids)
        sound = opened(engine, False)
        assert sound.next_chunk(TIMEOUT_S) is not None
        hung = opened(engine, True)
        for stream in (hung, sound):  # they share the worker
            with pytest.raises(WorkerLost, match=r'silent for .* raise `stall_s` \(0.5\)'):
                while stream.next_chunk(TIMEOUT_S) is not None:
                    pass
        assert reopened(engine).next_chunk(TIMEOUT_S) is not None
        assert not set(engine.worker_pids) & set(workers)


def test_a_batch_that_takes_long_is_no_fault() -> None:
    """Longer than a heart may be still, and than all before it."""
    spec = ModelSpec('faulty_model', {'fault': 'wait', 'wait_s': 1.0})
    with Engine(spec, sequential(describe(spec).graph), 2) as engine:
        workers = list(engine.worker_pids)
        sound = opened(engine, False)
        for _ in range(20):
            assert sound.next_chunk(TIMEOUT_S) is not None
        slow = opened(engine, True)
        for stream in (slow, sound):
            assert stream.next_chunk(TIMEOUT_S) is not None
        assert engine.worker_pids == workers


def test_a_prompt_that_the_model_chokes_on_opens_no_stream_and_takes_no_room() -> None:
    spec = ModelSpec('faulty_model', {'fault': 'context'})
    with Engine(spec, full_split(describe(spec).graph, 2)) as engine:
        workers = list(engine.worker_pids)
        for _ in range(3):
            with pytest.raises(StreamError, match='LookupError: no such word'):
                opened(engine, True)
        assert opened(engine, False).next_chunk(TIMEOUT_S) is not None
        assert engine.worker_pids == workers


def test_a_model_that_cannot_be_built_is_one_sentence() -> None:
    spec = ModelSpec('faulty_model', {'fault': 'build'})
    with pytest.raises(InputError, match=r'`faulty_model`: build failed with RuntimeError: no '
                                         r'such file \(faulty_model.py, line \d+\)'):
        Engine(spec, full_split(describe(spec).graph, 2))
    with pytest.raises(InputError, match=r'describe failed with KeyError'):
        describe(ModelSpec('faulty_model', {'fault': 'describe'}))


def test_a_model_that_cannot_be_built_again_is_said_and_comes_back(tmp_path: Path) -> None:
    """A worker is lost while the weights are away; streams open again when they are back."""
    weights = tmp_path / 'weights'
    weights.touch()
    spec = ModelSpec('faulty_model', {'weights': str(weights)})
    with Engine(spec, full_split(describe(spec).graph, 2)) as engine:
        stream = opened(engine, False)
        weights.unlink()
        os.kill(engine.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerLost):
            while stream.next_chunk(TIMEOUT_S) is not None:
                pass
        with pytest.raises(WorkerLost, match='cannot be started again: model `faulty_model`: '
                                             'build failed with FileNotFoundError'):
            opened(engine, False)
        weights.touch()
        assert reopened(engine).next_chunk(TIMEOUT_S) is not None


def test_a_process_that_ends_after_every_start_rests_in_between_and_comes_back(
        tmp_path: Path) -> None:
    marker = tmp_path / 'marker'
    spec = ModelSpec('faulty_model', {'fault': 'end', 'while': str(marker)})
    with Engine(spec, full_split(describe(spec).graph, 2)) as engine:
        marker.touch()
        os.kill(engine.worker_pids[1], signal.SIGKILL)
        until_s = time.monotonic() + TIMEOUT_S
        while 'starts in a row were in vain' not in (reason := refusal(engine)):
            assert time.monotonic() < until_s
        assert re.fullmatch(
            r'host process 1 \(pid \d+\) with device 1 (ended with exit code 3|did not start); \d+ '
            r'starts in a row were in vain, so the next waits [\d.]+ s', reason)
        marker.unlink()
        assert reopened(engine).next_chunk(TIMEOUT_S) is not None


def test_a_module_that_breaks_when_it_is_imported_is_one_sentence(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'breaks_at_import.py').write_text('\nraise RuntimeError("boo")\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PhysisError, match=r'cannot be imported: RuntimeError: boo '
                                          r'\(breaks_at_import.py, line 2\)'):
        describe(ModelSpec('breaks_at_import'))
