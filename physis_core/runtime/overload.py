"""Seeing that work arrives faster than it is done: where, at which stage, of which stream.

A stage's queue is what the stage before it has finished and it has not: no device is asked.  A
device is overloaded when its queue keeps growing, or when streams are held back at the entrance
because their chunks do not get through; it recovers when neither is so and the queue has shrunk.
Streams that were not there a window ago do not count: that they fill up is no overload.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from physis_core.graph import StageGraph
from physis_core.planning.plan import Plan
from physis_core.units import NS_PER_MS

WINDOW_LOOKS = 10
_GROWTH = 0.2  # of what arrived in the window
_CALM_LOOKS = 3


@dataclass(frozen=True)
class Queued:
    """What the engine knows of a stream: ``released`` chunks let in, ``held_back`` beats lost."""

    slot: int
    plan: Plan
    epoch: int
    released: int
    held_back: int


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
    """

    device: int
    step: int
    block: int
    stream: int
    queued: int
    growth: int
    held_back: int
    wait_ms: float

    def __str__(self) -> str:
        return (f'device {self.device} is overloaded: {self.queued} tasks wait there, most at step '
                f'{self.step} block {self.block} and of stream {self.stream}; {self.growth:+d} in '
                f'the last looks, {self.held_back} beats held back, waits of {self.wait_ms:.1f} ms')


@dataclass
class _Progress:
    """The last chunk of a stream that has ended at each stage."""

    epoch: int
    done: NDArray[np.int64]


@dataclass
class _Load:
    """The latest looks at one device."""

    served: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_LOOKS))
    held_back: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW_LOOKS))
    peak: int = 0
    calm: int = 0
    overloaded: bool = False
    wait_ms: float = 0.0


class OverloadWatch:
    """Judges devices from looks at regular intervals.  Used by one thread."""

    def __init__(self, graph: StageGraph, devices: int, max_batch: int) -> None:
        self._graph = graph
        self._least = 2 * max_batch
        self._progress: dict[int, _Progress] = {}
        self._held_back: dict[int, int] = {}
        self._past: deque[dict[int, NDArray[np.int64]]] = deque(maxlen=WINDOW_LOOKS)
        self._loads = [_Load() for _ in range(devices)]

    def look(self, records: Sequence[NDArray], streams: Sequence[Queued]) -> list[Overload]:
        """The overloaded devices, given the tasks each device has ended since the last look."""
        self._follow(streams)
        for ended in records:
            self._note(ended)
        queues = {stream.slot: self._queues(stream) for stream in streams}
        self._past.append({stream.slot: self._by_device(stream, queues[stream.slot])
                           for stream in streams})
        settled = self._past[0].keys() & queues.keys()
        fresh = self._newly_held_back(streams)
        found = []
        for device, load in enumerate(self._loads):
            ended = records[device]
            load.served.append(len(ended))
            if len(ended):
                load.wait_ms = float((ended['start_ns'] - ended['arrived_ns']).mean()) / NS_PER_MS
            here = [stream for stream in streams if stream.plan.stages_on(device)]
            load.held_back.append(sum(fresh[stream.slot] for stream in here
                                      if stream.slot in settled))
            queued = sum(int(self._past[-1][stream.slot][device]) for stream in here)
            growth = sum(int(self._past[-1][slot][device] - self._past[0][slot][device])
                         for slot in settled)
            if self._judge(load, queued, growth):
                step, block = self._graph.step_block(self._longest(device, here, queues))
                worst = max(here, default=None,
                            key=lambda stream: int(self._past[-1][stream.slot][device]))
                found.append(Overload(device, step, block, worst.slot if worst else -1, queued,
                                      growth, sum(load.held_back), load.wait_ms))
        return found

    def _follow(self, streams: Sequence[Queued]) -> None:
        """Begin with streams, or epochs, that are new, and forget those that are gone."""
        for stream in streams:
            known = self._progress.get(stream.slot)
            if known is None or known.epoch != stream.epoch:
                self._progress[stream.slot] = _Progress(
                    stream.epoch, np.full(self._graph.stages, -1, np.int64))
                for past in self._past:
                    past.pop(stream.slot, None)
        for slot in self._progress.keys() - {stream.slot for stream in streams}:
            del self._progress[slot]

    def _note(self, records: NDArray) -> None:
        for slot in np.unique(records['stream']):
            progress = self._progress.get(int(slot))
            if progress is None:
                continue
            own = records[(records['stream'] == slot) & (records['epoch'] == progress.epoch)]
            stages = own['step'].astype(np.int64) * self._graph.blocks + own['block']
            np.maximum.at(progress.done, stages, own['chunk'])

    def _queues(self, stream: Queued) -> NDArray[np.int64]:
        """Tasks of a stream that have arrived at each stage and not ended there."""
        done = self._progress[stream.slot].done
        before = np.concatenate(([stream.released - 1], done[:-1]))
        return np.maximum(before - done, 0)

    def _newly_held_back(self, streams: Sequence[Queued]) -> dict[int, int]:
        fresh = {stream.slot: max(0, stream.held_back - self._held_back.get(stream.slot, 0))
                 for stream in streams}
        self._held_back = {stream.slot: stream.held_back for stream in streams}
        return fresh

    def _by_device(self, stream: Queued, queues: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tasks of a stream that are queued at each device."""
        devices = [stream.plan.device_of(stage) for stage in range(self._graph.stages)]
        return np.bincount(devices, queues, len(self._loads)).astype(np.int64)

    def _longest(self, device: int, streams: Sequence[Queued],
                 queues: Mapping[int, NDArray[np.int64]]) -> int:
        """The stage of a device at which most tasks are queued."""
        total = np.zeros(self._graph.stages, np.int64)
        for stream in streams:
            own = np.array(stream.plan.stages_on(device))
            total[own] += queues[stream.slot][own]
        return int(total.argmax())

    def _judge(self, load: _Load, queued: int, growth: int) -> bool:
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
