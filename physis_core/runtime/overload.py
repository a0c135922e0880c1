"""Seeing that work arrives faster than it is done: where, at which stage, of which stream.

A stage's queue is what the stage before it has finished and it has not: no device is asked.  A
device is overloaded when its queue keeps growing, or when streams are held back at the entrance
because their chunks do not get through; it recovers when neither is so and the queue has shrunk.
Streams that were not there a window ago do not count: that they fill up is no overload.

Streams with a promise are judged by themselves too: that best-effort streams do not get through
beside them says nothing about how they fare.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from physis_core.graph import StageGraph
from physis_core.planning.plan import Plan
from physis_core.units import NS_PER_MS

WINDOW_LOOKS = 10
_GROWTH = 0.2  # of what arrived in the window
_CALM_LOOKS = 3

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Queued:
    """What the engine knows of a stream.

    Attributes:
        slot: its place in the engine.
        plan: where its stages are.
        epoch: counts the resets of its slot.
        released: chunks let in in this epoch.
        held_back: beats on which none could enter, since it was opened.
        promised: whether it was promised anything.
    """

    slot: int
    plan: Plan
    epoch: int
    released: int
    held_back: int
    promised: bool = True


@dataclass(frozen=True)
class Overload:
    """A device to which more comes than it does.

    Attributes:
        device: which.
        step: of its longest queue.
        block: of its longest queue.
        stream: slot of the stream with most tasks there.
        queued: tasks that wait at the device.
        growth: by how many more than at the beginning of the window.
        held_back: beats on which streams could not enter, in the window.
        wait_ms: how long tasks waited that were served last.
        promised: streams with a promise are too many by themselves.
    """

    device: int
    step: int
    block: int
    stream: int
    queued: int
    growth: int
    held_back: int
    wait_ms: float
    promised: bool = True

    def __str__(self) -> str:
        return (f'device {self.device} is overloaded: {self.queued} tasks wait there, most at step '
                f'{self.step} block {self.block} and of stream {self.stream}; {self.growth:+d} in '
                f'the last looks, {self.held_back} beats held back, waits of {self.wait_ms:.1f} ms')


@dataclass
class _Load:
    """The latest looks at one device."""

    served: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_LOOKS))
    held_back: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_LOOKS))
    peak: int = 0
    calm: int = 0
    overloaded: bool = False


class OverloadWatch:
    """Judges devices from looks at regular intervals.  Used by one thread.

    Arrays have one row a stream slot.
    """

    def __init__(self, graph: StageGraph, devices: int, slots: int, max_batch: int) -> None:
        self._graph = graph
        self._least = 2 * max_batch
        self._looks = 0
        self._since = np.zeros(slots, np.int64)  # the look at which a stream's epoch was new
        self._epochs = np.full(slots, -1, np.int64)
        self._held_back = np.zeros(slots, np.int64)
        self._done = np.full((slots, graph.stages), -1, np.int64)  # the last chunk that has ended
        self._device_of = np.full((slots, graph.stages), -1, np.int64)
        self._past: deque[Counts] = deque(maxlen=WINDOW_LOOKS)  # queued [slots, devices]
        self._wait_ms = [0.0] * devices
        self._loads = [(_Load(), _Load()) for _ in range(devices)]  # of all streams, of promised

    def look(self, records: Sequence[NDArray], streams: Sequence[Queued]) -> list[Overload]:
        """The overloaded devices, given the tasks each device has ended since the last look."""
        self._looks += 1
        held_back = self._follow(streams)
        self._note(np.concatenate(records))
        waiting = self._waiting(streams)
        devices = range(len(self._loads))
        self._past.append(np.stack([(waiting * (self._device_of == device)).sum(1)
                                    for device in devices], 1))
        everybody = np.array([stream.slot for stream in streams], np.int64)
        promised = np.array([stream.slot for stream in streams if stream.promised], np.int64)
        found = []
        for device in devices:
            ended = records[device]
            if len(ended):
                self._wait_ms[device] = float(
                    (ended['start_ns'] - ended['arrived_ns']).mean()) / NS_PER_MS
            by_all, by_promised = (
                self._judged(device, load, slots, waiting, held_back, len(ended))
                for load, slots in zip(self._loads[device], (everybody, promised), strict=True))
            if by_promised is not None:
                found.append(by_promised)
            elif by_all is not None:
                found.append(replace(by_all, promised=False))
        return found

    def _follow(self, streams: Sequence[Queued]) -> Counts:
        """Begin with streams, or epochs, that are new; returns the beats newly held back."""
        for stream in streams:
            slot = stream.slot
            if self._epochs[slot] == stream.epoch:
                continue
            self._epochs[slot], self._since[slot] = stream.epoch, self._looks
            self._done[slot] = -1
            self._held_back[slot] = stream.held_back
            self._device_of[slot] = [stream.plan.device_of(stage)
                                     for stage in range(self._graph.stages)]
        before = self._held_back.copy()
        for stream in streams:
            self._held_back[stream.slot] = stream.held_back
        return self._held_back - before

    def _note(self, records: NDArray) -> None:
        records = records[records['epoch'] == self._epochs[records['stream']]]
        stages = records['step'].astype(np.int64) * self._graph.blocks + records['block']
        np.maximum.at(self._done, (records['stream'], stages), records['chunk'])

    def _waiting(self, streams: Sequence[Queued]) -> Counts:
        """Tasks that have arrived at each stage and not ended there [slots, stages]."""
        arrived = np.full_like(self._done, -1)
        for stream in streams:
            arrived[stream.slot, 0] = stream.released - 1
            arrived[stream.slot, 1:] = self._done[stream.slot, :-1]
        return np.maximum(arrived - self._done, 0) * (arrived >= 0)

    def _judged(self, device: int, load: _Load, slots: Counts, waiting: Counts, held_back: Counts,
                served: int) -> Overload | None:
        """What some streams do to a device; None: it keeps up with them."""
        here = slots[(self._device_of[slots] == device).any(1)]
        settled = here[self._since[here] <= self._looks - len(self._past) + 1]
        queued = int(self._past[-1][here, device].sum())
        growth = int((self._past[-1] - self._past[0])[settled, device].sum())
        load.served.append(served)
        load.held_back.append(int(held_back[settled].sum()))
        if not self._is_overloaded(load, queued, growth):
            return None
        own = waiting[here] * (self._device_of[here] == device)
        step, block = self._graph.step_block(int(own.sum(0).argmax()))
        stream = int(here[own.sum(1).argmax()]) if len(here) else -1
        return Overload(device, step, block, stream, queued, growth, sum(load.held_back),
                        self._wait_ms[device])

    def _is_overloaded(self, load: _Load, queued: int, growth: int) -> bool:
        """Whether a device is overloaded, given its latest looks."""
        growing = (len(self._past) == WINDOW_LOOKS and growth >= self._least
                   and growth > _GROWTH * (sum(load.served) + growth))
        if growing or (load.held_back[-1] and queued >= self._least // 2):
            load.overloaded = True
            load.calm = 0
            load.peak = max(load.peak, queued)
        elif load.overloaded:
            load.calm += 1
            if load.calm >= _CALM_LOOKS and queued <= max(self._least, load.peak // 2):
                load.overloaded, load.peak = False, 0
        return load.overloaded
