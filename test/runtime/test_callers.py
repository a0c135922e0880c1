"""What careless callers do to an engine: no main guard, a fork, values that are no numbers."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay import Recorded, draw, largest_error, tiny

from physis_core.errors import InputError, StreamError
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import full_split
from physis_core.runtime.engine import Engine, EngineOptions, StreamOptions

SPEC = tiny()
DESCRIPTION = describe(SPEC)
HERE = Path(__file__).parent

UNGUARDED = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
print('started')
from replay import Recorded, tiny
from physis_core.models.registry import describe
from physis_core.planning.modes import full_split
from physis_core.runtime.engine import Engine
spec = tiny()
with Engine(spec, full_split(describe(spec).graph, 2)) as engine:
    print(len(Recorded(engine.open_stream(), describe(spec)).run(3)))
"""

FORKING = UNGUARDED.replace('    print(len(', """    import os
    if os.fork() == 0:
        raise SystemExit(0)  # through the engine's exit, and the interpreter's
    os.wait()
    print(len(""")


@pytest.mark.parametrize('program', [UNGUARDED, FORKING])
def test_a_script_needs_no_main_guard_and_may_fork(tmp_path: Path, program: str) -> None:
    script = tmp_path / 'a script.py'
    script.write_text(program)
    # Python 3.12 and later warn of any fork beside threads.
    done = subprocess.run([sys.executable, '-W', 'ignore::DeprecationWarning', str(script)],
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout.split()[-1] == '3'
    assert done.stdout.count('started') == 1


def test_an_engine_is_not_for_a_forked_child() -> None:
    with Engine(SPEC, full_split(DESCRIPTION.graph, 2), streams=2) as engine:
        recorded = Recorded(engine.open_stream(), DESCRIPTION)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for call in (engine.open_stream, recorded.observe, recorded.stream.reset,
                         recorded.stream.next_chunk):
                try:
                    call()
                except StreamError as error:
                    said.append(str(error))
            recorded.stream.close()
            engine.close()
            os.write(writer, '\n'.join(said).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as words:
            said = words.read().splitlines()
        os.waitpid(child, 0)
        assert len(said) == 4
        assert all(f'belongs to process {os.getpid()}, this is a fork of it' in one
                   for one in said)
        assert largest_error(SPEC, recorded, recorded.run(3)) == 0.0


def test_a_capture_time_that_is_none_is_refused_and_the_next_observation_counts() -> None:
    with Engine(SPEC, full_split(DESCRIPTION.graph, 1)) as engine:
        recorded = Recorded(engine.open_stream(), DESCRIPTION)
        arrays = draw(DESCRIPTION, np.random.default_rng(0))
        with pytest.raises(InputError, match='observation is NoneType; give arrays by name'):
            recorded.stream.observe(None, 1)  # type: ignore[arg-type]
        values: list[Any] = [math.nan, 1e18, 2 ** 63, None, 'now']
        for value in values:
            with pytest.raises(InputError, match='capture_ns is'):
                recorded.stream.observe(arrays, value)
        recorded.stream.observe(arrays, time.monotonic_ns())
        assert recorded.stream.next_chunk(30.0) is not None


@pytest.mark.parametrize('name', ['seed', 'period_ns', 'lead_ns', 'queue_chunks', 'priority'])
@pytest.mark.parametrize('value', [-2 ** 40, math.nan, math.inf, 0.5, 2 ** 63, '1'])
def test_options_of_a_stream_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f'{name} is '):
        StreamOptions(**{name: value})


@pytest.mark.parametrize('options', [
    {'stall_s': math.nan}, {'stall_s': math.inf}, {'stall_s': 'x'}, {'spin': -1}, {'spin': 'x'},
    {'spin': 2 ** 40}, {'virtual_hosts': 0}, {'virtual_hosts': 'x'}])
def test_options_of_an_engine_are_in_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f'{next(iter(options))} is '):
        EngineOptions(**options)


@pytest.mark.parametrize(('plans', 'streams', 'says'), [
    (full_split(DESCRIPTION.graph, 1), 0, '0 stream slots; an engine has from 1 to'),
    (full_split(DESCRIPTION.graph, 1), 10 ** 9, '1000000000 stream slots; an engine has from'),
    (full_split(DESCRIPTION.graph, 1), 1.5, '1.5 stream slots'),
    (None, 1, 'None is no plan'), ('plan.json', 1, "'p' is no plan"), ([None], 1, 'None is no'),
    ([], 1, 'at least one stream slot')])
def test_plans_and_slots_are_checked_before_anything_starts(
        plans: Any, streams: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Engine(SPEC, plans, streams)


def test_an_engine_that_does_not_start_leaves_no_descriptor() -> None:
    spec = ModelSpec('faulty_model', {'fault': 'build'})

    def fail() -> None:
        with pytest.raises(InputError, match='build failed'):
            Engine(spec, full_split(describe(spec).graph, 2))
        gc.collect()  # the error holds what its frames held

    fail()
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(3):
        fail()
    assert len(os.listdir('/proc/self/fd')) <= before
