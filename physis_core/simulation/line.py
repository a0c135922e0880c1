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
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Flow:
    """When each chunk is taken into the first stage, and when it leaves the last [ns]."""

    entered_ns: Times
    left_ns: Times


def line_flow(times: Iterator[Times], slots: int | None, pace_ns: int = 0) -> Flow:
    """Chunks through the line, one entering every ``pace_ns``, or as fast as the first stage can.

    ``slots``: places between two stages beyond the task in service and the sender's finished one;
    None: as many as it takes.
    """
    if slots is not None and slots < 0:
        raise InputError(f'{slots} slots between stages; the least is 0')
    left: deque[Times] = deque(maxlen=0 if slots is None else slots + 1)
    before: Times | None = None
    entered, out = [], []
    for chunk, service in enumerate(times):
        first_ns = max(chunk * pace_ns, 0 if before is None else int(before[0]))
        earliest = service.copy() if before is None else before + service
        if before is None:
            earliest[1:] = 0  # nothing holds the first chunk but itself
        earliest[0] = first_ns + service[0]
        if slots is not None and len(left) == slots + 1:
            np.maximum(earliest[:-1], left[0][1:], out=earliest[:-1])
        total = np.cumsum(service)
        before = np.maximum.accumulate(earliest - total) + total
        left.append(before)
        entered.append(first_ns)
        out.append(before[-1])
    return Flow(np.array(entered, np.int64), np.array(out, np.int64))


def barrier_departures_ns(times: Iterator[Times], stages: int, chunks: int) -> Times:
    """The same line where all stages advance together, each tick as long as its slowest stage."""
    ticks = np.zeros(chunks + stages - 1, np.int64)
    for chunk, service in enumerate(times):
        window = ticks[chunk:chunk + stages]
        np.maximum(window, service, out=window)
    return np.cumsum(ticks)[stages - 1:]
