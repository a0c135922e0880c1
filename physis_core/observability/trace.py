"""A chunk's way through the stages as a trace that Perfetto and chrome://tracing open.

Devices are rows; on each are the batches it ran while the chunk was under way, the chunk's own
tasks marked and joined by arrows.  A row of its own shows the chunk from entrance to delivery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from physis_core.errors import InputError
from physis_core.units import NS_PER_US

Records = NDArray[Any]
ChunkId = tuple[int, int, int]
"""(stream, epoch, chunk)."""

_DEVICES, _CHUNK = 1, 2


def parse_chunk_id(text: str) -> ChunkId:
    """``STREAM:EPOCH:CHUNK`` as three whole numbers."""
    parts = text.split(':')
    try:
        stream, epoch, chunk = (int(part) for part in parts)
    except ValueError as error:
        raise InputError(f'chunk id `{text}`; write STREAM:EPOCH:CHUNK, e.g. `0:1:120`') from error
    return stream, epoch, chunk


def chunk_trace(chunk_id: ChunkId, chunk: Mapping[str, int], tasks: Sequence[Records]) -> str:
    """The trace as JSON.

    Args:
        chunk_id: whose.
        chunk: its record: ``received_ns release_ns started_ns finished_ns due_ns taken_ns``.
        tasks: the latest task records of each device.

    Raises:
        InputError: the devices no longer remember its tasks.
    """
    stream, epoch, number = chunk_id
    own = [records[(records['stream'] == stream) & (records['epoch'] == epoch)
                   & (records['chunk'] == number)] for records in tasks]
    if not any(len(records) for records in own):
        raise InputError(f'the devices no longer remember the tasks of chunk {_name(chunk_id)}; '
                         'trace one that finished within the last seconds')
    first_ns = min(chunk['release_ns'], *(int(records['arrived_ns'].min())
                                          for records in own if len(records)))
    last_ns = max(chunk['taken_ns'], chunk['finished_ns'])
    events: list[dict[str, Any]] = [
        _label('process_name', _DEVICES, 0, 'devices'), _label('process_name', _CHUNK, 0, 'chunk'),
        _label('thread_name', _CHUNK, 0, f'chunk {_name(chunk_id)}')]
    for device, records in enumerate(tasks):
        events.append(_label('thread_name', _DEVICES, device, f'device {device}'))
        seen = records[(records['end_ns'] >= first_ns) & (records['start_ns'] <= last_ns)]
        events += _batches(device, seen, chunk_id, first_ns)
    events += _way(own, first_ns)
    events += _life(chunk, first_ns)
    return json.dumps({'displayTimeUnit': 'ms', 'traceEvents': events,
                       'otherData': {'chunk': _name(chunk_id)}})


def _batches(device: int, records: Records, chunk_id: ChunkId, first_ns: int
             ) -> list[dict[str, Any]]:
    """One slice a batch; the tasks of a call have the same start."""
    events = []
    for start_ns in np.unique(records['start_ns']):
        members = records[records['start_ns'] == start_ns]
        names = [_name((int(one['stream']), int(one['epoch']), int(one['chunk'])))
                 for one in members]
        own = _name(chunk_id) in names
        head = members[names.index(_name(chunk_id))] if own else members[0]
        events.append({
            'name': f'step {head["step"]} block {head["block"]}' + (' *' if own else ''),
            'cat': 'own' if own else 'other', 'ph': 'X', 'pid': _DEVICES, 'tid': device,
            'ts': _us(int(start_ns), first_ns), 'dur': _us(int(head['end_ns']), int(start_ns)),
            'args': {'batch': int(head['batch']), 'chunks': names}})
    return events


def _way(own: Sequence[Records], first_ns: int) -> list[dict[str, Any]]:
    """Waiting and running at every stage, and arrows from device to device."""
    steps = sorted(((int(task['arrived_ns']), device, task)
                    for device, records in enumerate(own) for task in records),
                   key=lambda step: (step[0], int(step[2]['step']), int(step[2]['block'])))
    events: list[dict[str, Any]] = []
    for arrived_ns, device, task in steps:
        start_ns, end_ns = int(task['start_ns']), int(task['end_ns'])
        where = f'step {task["step"]} block {task["block"]}'
        if start_ns > arrived_ns:
            events.append({'name': 'wait', 'cat': 'wait', 'ph': 'X', 'pid': _CHUNK, 'tid': 1,
                           'ts': _us(arrived_ns, first_ns), 'dur': _us(start_ns, arrived_ns),
                           'args': {'for': where, 'device': device}})
        events.append({'name': where, 'cat': 'run', 'ph': 'X', 'pid': _CHUNK, 'tid': 1,
                       'ts': _us(start_ns, first_ns), 'dur': _us(end_ns, start_ns),
                       'args': {'device': device, 'batch': int(task['batch'])}})
    for number, (before, after) in enumerate(pairwise(steps)):
        for phase, (_, device, task), time in (('s', before, 'end_ns'), ('f', after, 'start_ns')):
            arrow = {'name': 'chunk', 'cat': 'chunk', 'ph': phase, 'id': number,
                     'pid': _DEVICES, 'tid': device, 'ts': _us(int(task[time]), first_ns)}
            events.append({**arrow, 'bp': 'e'} if phase == 'f' else arrow)
    return events


def _life(chunk: Mapping[str, int], first_ns: int) -> list[dict[str, Any]]:
    """From entrance to delivery, in its parts."""
    marks = (('entrance to first stage', 'release_ns', 'started_ns'),
             ('stages', 'started_ns', 'finished_ns'), ('hand-over', 'finished_ns', 'taken_ns'))
    events: list[dict[str, Any]] = [
        {'name': name, 'cat': 'life', 'ph': 'X', 'pid': _CHUNK, 'tid': 0,
         'ts': _us(chunk[begin], first_ns), 'dur': max(0.0, _us(chunk[end], chunk[begin]))}
        for name, begin, end in marks]
    if chunk['timed']:
        events.append({'name': 'due', 'cat': 'life', 'ph': 'i', 's': 'p', 'pid': _CHUNK, 'tid': 0,
                       'ts': _us(chunk['due_ns'], first_ns)})
    return events


def _label(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {'name': kind, 'ph': 'M', 'pid': process, 'tid': thread, 'args': {'name': text}}


def _name(chunk_id: ChunkId) -> str:
    return ':'.join(map(str, chunk_id))


def _us(time_ns: int, first_ns: int) -> float:
    return (time_ns - first_ns) / NS_PER_US
