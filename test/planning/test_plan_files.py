"""Plan and profile files that people edited, cut off, or took for each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from physis_core.errors import InputError
from physis_core.graph import StageGraph
from physis_core.planning.modes import full_split
from physis_core.planning.plan import Plan
from physis_core.planning.profile import Profile, given_profile

GRAPH = StageGraph(steps=2, blocks=2, window_chunks=2)
PLAN = json.loads(full_split(GRAPH, 2).to_json())
PROFILE = json.loads(given_profile('toy', GRAPH, [10, 12]).to_json())
VALUES = [None, -1, 1.5, float('nan'), float('inf'), 'x', [], {}, 10 ** 30, [[]], [1, 'x']]
MISSING = object()


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def changed(data: Any, path: tuple[Any, ...], value: object) -> str:
    """The data as JSON with another value there, or without it."""
    data = json.loads(json.dumps(data))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(('kind', 'data'), [(Plan, PLAN), (Profile, PROFILE)])
def test_a_changed_value_is_read_or_refused_and_never_breaks_the_reader(
        kind: type[Plan] | type[Profile], data: Any) -> None:
    refused = 0
    for path in list(places(data)):
        for value in (*VALUES, MISSING):
            try:
                kind.from_json(changed(data, path, value))
            except InputError as error:
                assert str(error)
                refused += 1
    assert refused > 100


@pytest.mark.parametrize('text', [b'', b'\x00\xff', b'null', b'[1]', b'{}', b'[' * 100_000])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / 'a file.json'
    path.write_bytes(text)
    for kind in (Plan, Profile):
        with pytest.raises(InputError):
            kind.load(path)
        with pytest.raises(InputError, match='cannot be read'):
            kind.load(tmp_path)
