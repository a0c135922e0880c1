"""A running engine seen by the commands; in their own process where that matters."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from physis_core.cli.main import main
from physis_core.cli.watch import EngineWatch
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import full_split
from physis_core.runtime.descriptor import find_engine, running_engines, runtime_directory
from physis_core.runtime.engine import Engine, StreamOptions

SPEC = ModelSpec('dit', {'dim': 16, 'heads': 2, 'tokens': 3, 'steps': 2, 'blocks': 2, 'window': 2})
CHUNKS = 20


@pytest.fixture(scope='module', autouse=True)
def own_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Other engines of this user are none of our business."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp('run')
        patch.setenv('XDG_RUNTIME_DIR', str(path))
        yield path


@pytest.fixture(scope='module')
def engine(own_directory: Path) -> Iterator[Engine]:
    """An engine on two devices that has just finished some chunks."""
    with Engine(SPEC, full_split(describe(SPEC).graph, 2)) as engine:
        stream = engine.open_stream(StreamOptions(period_ns=5_000_000, lead_ns=10**10))
        stream.observe({'state': np.zeros(6, np.float32)}, 0)
        for _ in range(CHUNKS):
            assert stream.next_chunk(30.0) is not None
        stream.pause()
        yield engine


def test_top_in_another_process_shows_streams_devices_memory_and_links(engine: Engine) -> None:
    done = subprocess.run(
        [sys.executable, '-m', 'physis_core.cli.main', 'top', '--json', '--window', '60'],
        capture_output=True, text=True, timeout=60, check=True)
    seen = json.loads(done.stdout)
    assert (seen['model'], seen['pid']) == ('dit', os.getpid())
    stream, = seen['streams']
    assert (stream['slot'], stream['goodput']['on_time'] >= CHUNKS) == (0, True)
    assert [row['device'] for row in seen['devices']] == [0, 1]
    for row in seen['devices']:
        assert row['memory']['weights'] > 0
        assert row['memory']['kv'] > 0
        assert row['batches']['batches'] >= CHUNKS
        assert {stage['block'] for stage in row['stages']}
    assert {(row['sender'], row['receiver']) for row in seen['edges']} == {(-1, 0), (0, 1), (1, -1)}


def test_top_as_tables(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['top', '--once', '--stages', '--window', '60']) == 0
    printed = capsys.readouterr().out
    for title in ('dit, last 60 s', 'devices', 'stages', 'links'):
        assert title in printed
    assert printed.startswith(f'engine of `dit` in process {os.getpid()}\n')


def test_top_fits_a_terminal_of_80_columns(
        engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv('COLUMNS', '80')
    assert main(['top', '--once', '--stages', '--window', '60']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and not any('…' in line for line in lines)
    row = next(line for line in lines if line.lstrip().startswith('0:1 '))
    assert row.count(' / ') == 2  # period and response, each in one line


def test_another_engine_is_mentioned(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = EngineWatch()
    other = replace(watch.descriptor, pid=1)
    monkeypatch.setattr('physis_core.cli.watch.running_engines', lambda: [other, watch.descriptor])
    assert watch.name.endswith('; others run in 1: choose with --pid')


def test_trace_follows_one_chunk_through_all_stages(
        engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / 'trace.json'
    assert main(['trace', '--chunk', '0:1:3', '--out', str(out)]) == 0
    trace = json.loads(out.read_text())
    assert trace['otherData'] == {'chunk': '0:1:3'}
    assert f'chunk 0:1:3 of the engine of `dit` in process {os.getpid()}\n' in (
        capsys.readouterr().out)
    ran = [event['name'] for event in trace['traceEvents'] if event.get('cat') == 'run']
    assert ran == [f'step {step} block {block}' for step in range(2) for block in range(2)]
    assert main(['trace', '--out', str(out)]) == 0


def test_what_is_not_there_is_said(engine: Engine, capsys: pytest.CaptureFixture[str],
                                   tmp_path: Path) -> None:
    for arguments, words in (
            (['trace', '--chunk', '0:1:999999'], 'is not among the latest'),
            (['trace', '--chunk', 'x'], 'write STREAM:EPOCH:CHUNK'),
            (['top', '--pid', '1', '--once'], 'process 1 runs no engine'),
            (['top', '--window', '0'], '--window is 0 s'),
            (['top', '--every', 'inf'], '--every is inf s; give more than 0 and at most 86400')):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_the_descriptor_is_for_its_user_alone_and_goes_with_its_engine(
        engine: Engine, own_directory: Path) -> None:
    assert stat.S_IMODE(runtime_directory().stat().st_mode) == 0o700
    published = set(runtime_directory().iterdir())
    with Engine(SPEC, full_split(describe(SPEC).graph, 1)):
        added, = set(runtime_directory().iterdir()) - published
        assert stat.S_IMODE(added.stat().st_mode) == 0o600
        assert len(running_engines()) == 2
    assert set(runtime_directory().iterdir()) == published


def test_the_file_of_a_killed_engine_is_cleared_away(engine: Engine) -> None:
    stale = runtime_directory() / 'engine-999999-0.json'
    gone = find_engine(os.getpid()).to_json().replace(f'/proc/{os.getpid()}/', '/proc/999999/')
    stale.write_text(gone)
    assert [one.pid for one in running_engines()] == [os.getpid()]
    assert not stale.exists()
