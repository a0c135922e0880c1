"""Traces: realistic ones are made, ours carries the most of them, typos are named."""

import json

import pytest

from physis_core.errors import InputError
from physis_core.models.presets import load_preset
from physis_core.planning.cluster import uniform_cluster
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.replay import replay
from physis_core.planning.strategies import STRATEGIES
from physis_core.planning.traces import GENERATORS, Session, read_trace, trace_text


@pytest.mark.parametrize('name', sorted(GENERATORS))
@pytest.mark.parametrize('seed', [0, 1])
def test_ours_carries_more_than_even_split_and_best_fit(name, seed):
    device = load_device('h100')
    sessions = GENERATORS[name](6, seed)
    profiles = {model: analytic_profile(load_preset(model), device, 8)
                for model in {session.model for session in sessions}}
    carried = {strategy: replay(sessions, profiles, uniform_cluster(6, device),
                                STRATEGIES[strategy])
               for strategy in ('portfolio', 'even', 'best_fit')}
    ours = carried.pop('portfolio')
    assert ours.admitted + len(ours.refused) == len(sessions)
    assert 0 < ours.time_used < 1 and 0 < ours.memory_used < 1
    assert all(ours.carried_s > other.carried_s for other in carried.values())


def test_generators_are_reproducible():
    for generate in GENERATORS.values():
        assert generate(4, 7) == generate(4, 7) != generate(4, 8)


def test_survives_disk(tmp_path):
    sessions = GENERATORS['fleet'](4, 0)
    (tmp_path / 'trace.json').write_text(trace_text(sessions))
    assert read_trace(tmp_path / 'trace.json') == sessions


@pytest.mark.parametrize('text, says', [
    ('nothing', 'cannot be read'),
    ('{"sessions": []}', 'not of schema version 1'),
    ('{"schema": 1, "sessions": []}', '0 sessions'),
    ('{"schema": 1, "sessions": [{"steam": "a"}]}', 'unknown key `steam`; did you mean `stream`'),
    (json.dumps({'schema': 1, 'sessions': [{
        'stream': 'a', 'model': 'h3', 'period_ms': 1.0, 'arrives_s': 2.0, 'leaves_s': 1.0}]}),
     'leaves after it arrives'),
])
def test_typos_are_named(tmp_path, text, says):
    path = tmp_path / 'trace.json'
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_trace(path)


def test_sessions_have_a_period():
    with pytest.raises(InputError, match='period of 0 ms'):
        Session('a', 'h3', 0.0, 0.0, 1.0)
