"""A chunk's trace: one id from entrance to delivery, in the format that Perfetto reads."""

from __future__ import annotations

import json

import pytest
from records import chunks, tasks

from physis_core.errors import InputError
from physis_core.observability.trace import chunk_trace, parse_chunk_id

ON_0 = tasks((0, 7, 0, 0, 2, 0, 1, 3), (4, 2, 0, 0, 2, 0, 1, 3), (0, 8, 0, 0, 1, 3, 4, 5))
ON_1 = tasks((0, 7, 0, 1, 1, 3.5, 4, 5))
CHUNK = {name: int(chunks(0, [0])[0][name]) for name in chunks(0, [0]).dtype.names}


def trace() -> list[dict]:
    return json.loads(chunk_trace((0, 1, 7), CHUNK, [ON_0, ON_1]))['traceEvents']


def test_batches_lie_on_their_devices_with_everybody_who_shared_them() -> None:
    slices = [event for event in trace() if event['ph'] == 'X' and event['pid'] == 1]
    assert [(event['tid'], event['name'], event['ts'], event['dur']) for event in slices] == [
        (0, 'step 0 block 0 *', 1000, 2000), (0, 'step 0 block 0', 4000, 1000),
        (1, 'step 0 block 1 *', 4000, 1000)]
    assert slices[0]['args'] == {'batch': 2, 'chunks': ['0:1:7', '4:1:2']}


def test_the_way_of_the_chunk_is_waits_and_runs_in_order() -> None:
    way = [(event['name'], event['ts'], event['dur']) for event in trace()
           if event['ph'] == 'X' and event['pid'] == 2 and event['tid'] == 1]
    assert way == [('wait', 0, 1000), ('step 0 block 0', 1000, 2000), ('wait', 3500, 500),
                   ('step 0 block 1', 4000, 1000)]
    arrows = [(event['ph'], event['tid'], event['ts']) for event in trace()
              if event['ph'] in 'sf']
    assert arrows == [('s', 0, 3000), ('f', 1, 4000)]


def test_the_life_of_the_chunk_from_entrance_to_delivery() -> None:
    life = {event['name']: event for event in trace() if event.get('cat') == 'life'}
    assert (life['entrance to first stage']['ts'], life['entrance to first stage']['dur']) == (
        0, 1000)
    assert (life['stages']['ts'], life['stages']['dur']) == (1000, 4000)
    assert life['due']['ts'] == 8000


def test_every_event_has_what_the_format_asks_for() -> None:
    for event in trace():
        assert event['ph'] in {'X', 'M', 's', 'f', 'i'}
        assert isinstance(event['pid'], int)
        assert isinstance(event['tid'], int)
        if event['ph'] == 'X':
            assert event['dur'] >= 0


def test_a_forgotten_chunk_and_a_bad_id_are_refused() -> None:
    with pytest.raises(InputError, match='no longer remember the tasks of chunk 0:1:99'):
        chunk_trace((0, 1, 99), CHUNK, [ON_0, ON_1])
    assert parse_chunk_id('3:1:120') == (3, 1, 120)
    with pytest.raises(InputError, match='write STREAM:EPOCH:CHUNK'):
        parse_chunk_id('120')
