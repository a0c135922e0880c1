"""A line of stages, one on each device, one stream: the event loop in closed form.

There dispatch has no choice: a device never has more than one ready task, because the next chunk
may start only when the one before has ended, and a batch would need two.  So task c starts at a
stage when it has arrived and task c - 1 has left, and with b places between two stages it leaves
when it has ended and task c - b - 1 has left the next one::

    D[c, s] = max(D[c, s-1] + t, D[c-1, s] + t, D[c-b-1, s+1])

That is one running maximum a chunk.  A test compares it with the event loop, to the nanosecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from physis_core.errors import InputError
from physis_core.simulation.jitter import ROWS, Jitter

Times = NDArray[np.int64]


def stage_times_ns(stages: int, stage_ns: int, chunks: int, jitter: Jitter) -> Iterator[Times]:
    """The times of each chunk's stages [ns], ``[stages]`` a chunk."""
    for index in range(-(-chunks // ROWS)):
        block = np.rint(jitter.rows(index, stages) * stage_ns).astype(np.int64)
        yield from block[:chunks - index * ROWS]


def departures_ns(times: Iterator[Times], slots: int | None) -> Times:
    """When each chunk leaves the line [ns], with a source that always has the next one ready.

    ``slots``: places between two stages beyond the task in service and the sender's finished one;
    None: as many as it takes.
    """
    if slots is not None and slots < 0:
        raise InputError(f'{slots} slots between stages; the least is 0')
    left: deque[Times] = deque(maxlen=None if slots is None else slots + 1)
    before: Times | None = None
    out = []
    for service in times:
        total = np.cumsum(service)
        earliest = service.copy() if before is None else before + service
        if before is None:
            earliest[1:] = 0  # nothing holds the first chunk but itself
        if slots is not None and len(left) == slots + 1:
            np.maximum(earliest[:-1], left[0][1:], out=earliest[:-1])
        before = np.maximum.accumulate(earliest - total) + total
        if slots is not None:
            left.append(before)
        out.append(before[-1])
    return np.array(out, np.int64)


def barrier_departures_ns(times: Iterator[Times], stages: int, chunks: int) -> Times:
    """The same line where all stages advance together, each tick as long as its slowest stage."""
    ticks = np.zeros(chunks + stages - 1, np.int64)
    for chunk, service in enumerate(times):
        window = ticks[chunk:chunk + stages]
        np.maximum(window, service, out=window)
    return np.cumsum(ticks)[stages - 1:]
