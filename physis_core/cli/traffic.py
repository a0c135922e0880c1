"""Streams that behave like robots: they observe at a steady beat, every chunk has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from physis_core.errors import StreamError
from physis_core.models.protocol import ModelDescription
from physis_core.observability.goodput import PoolGoodput, StreamGoodput, stream_goodput
from physis_core.observability.stages import BatchNumbers, batch_numbers
from physis_core.runtime.engine import Engine
from physis_core.runtime.stream import FinishedChunk, Stream
from physis_core.units import NS_PER_S, s_from_ns

_SWEEP_S = 0.004
_LATEST = 64  # chunks of a stream that are looked at for lateness

Observation = Mapping[str, np.ndarray]


@dataclass
class Rider:
    """One stream, and what came out of it."""

    stream: Stream
    observation: Observation
    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    """Planned entrance, end and deadline of each chunk [ns]."""
    observed_ns: int = 0

    def observe(self) -> None:
        """See the same again, now."""
        if self.stream.needs_observation:
            self.observed_ns = time.monotonic_ns()
            self.stream.observe(self.observation, self.observed_ns)

    def look(self) -> None:
        """Observe, if that was half a period ago or longer, whatever came out meanwhile."""
        if self.stream.ended is None and (
                time.monotonic_ns() - self.observed_ns >= self.period_ns // 2):
            with suppress(StreamError):  # it has ended this moment
                self.observe()

    def take(self) -> bool:
        """Take a finished chunk, if there is one."""
        try:
            chunk = self.stream.next_chunk(0.0)
        except StreamError:  # its beats count as missed from now on
            return False
        if chunk is None:
            return False
        self.note(chunk)
        return True

    def note(self, chunk: FinishedChunk) -> None:
        """Remember when a chunk entered, ended and was due."""
        self.chunks.append((chunk.release_ns, chunk.finished_ns, chunk.due_ns))

    def goodput(self, first_ns: int, last_ns: int) -> StreamGoodput:
        """The account of the chunks that were due in a span of time."""
        times = np.array(self.chunks, np.int64).reshape(-1, 3)
        times = times[(times[:, 2] >= first_ns) & (times[:, 2] < last_ns)]
        account = stream_goodput(times[:, 0], times[:, 1], times[:, 2], self.period_ns)
        if self.stream.ended is None or not self.period_ns:
            return account
        beats = (last_ns - first_ns) // self.period_ns
        return replace(account, skipped=max(account.skipped, beats - account.outputs))

    @property
    def period_ns(self) -> int:
        """Interval between chunks let in [ns]."""
        period_ns = self.stream.options.period_ns
        return self.stream.plan.period_us * 1000 if period_ns is None else period_ns


@dataclass(frozen=True)
class Measured:
    """What a pool did in a span of time."""

    goodput: PoolGoodput
    batches: BatchNumbers


def any_observation(description: ModelDescription) -> dict[str, np.ndarray]:
    """Something of the right shapes: what it shows does not change how long a chunk takes."""
    random = np.random.default_rng(0)
    return {name: random.integers(0, 256, spec.shape, np.uint8) if spec.dtype == 'uint8'
            else np.zeros(spec.shape, spec.dtype) for name, spec in description.observation.items()}


def ride(riders: Sequence[Rider], seconds: float, between: Callable[[], None] | None = None,
         enough: Callable[[int], bool] | None = None) -> tuple[int, int]:
    """Serve all streams for a while; returns when that began and ended [ns].

    ``between`` is called after every look at the streams; when ``enough`` is true of the time of
    the beginning, it ends early.
    """
    first_ns = time.monotonic_ns()
    last_ns = first_ns + round(seconds * NS_PER_S)
    while time.monotonic_ns() < last_ns:
        sweep(riders)
        if between is not None:
            between()
        if enough is not None and enough(first_ns):
            return first_ns, time.monotonic_ns()
        time.sleep(_SWEEP_S)
    return first_ns, last_ns


def sweep(riders: Sequence[Rider]) -> None:
    """Observe, and take whatever is finished."""
    for rider in riders:
        rider.look()
        while rider.take():
            pass


def leave(riders: Sequence[Rider]) -> None:
    """Close all streams."""
    for rider in riders:
        rider.stream.close()


def measure(engine: Engine, riders: Sequence[Rider], devices: int, seconds: float,
            warm_up_s: float, allowed: float | None = None) -> Measured:
    """Serve streams, and account for what was due after the warm-up.

    ``allowed``: give up as soon as more chunks are late or held back; what was seen is accounted.

    Raises:
        StreamError: a stream delivers nothing.
    """
    ride(riders, warm_up_s)
    taken = [log.total for log in engine.stage_logs()]
    records: list[np.ndarray] = []

    def keep_records() -> None:
        for device, log in enumerate(engine.stage_logs()):
            records.append(log.latest(log.total - taken[device]))
            taken[device] += len(records[-1])

    losses = _Losses(riders, allowed)
    first_ns, last_ns = ride(riders, seconds, _Every(0.25, keep_records),
                             None if allowed is None else losses.are_too_many)
    keep_records()
    longest_lead_ns = max((rider.stream.options.lead_ns or 0) for rider in riders)
    ride(riders, 2 * s_from_ns(longest_lead_ns))  # what was due is counted when it is finished
    accounts = tuple(rider.goodput(first_ns, last_ns) for rider in riders)
    for rider in riders:
        if not rider.chunks and rider.stream.ended is None:
            raise StreamError(f'stream {rider.stream.slot} delivered nothing in {seconds} s')
    return Measured(PoolGoodput(accounts, devices, s_from_ns(last_ns - first_ns)),
                    batch_numbers(np.concatenate(records)))


class _Losses:
    """Beats that some streams have lost since it was made, looked at four times a second."""

    def __init__(self, riders: Sequence[Rider], allowed: float | None) -> None:
        self._riders = riders
        self._allowed = allowed or 0.0
        self._held_back = sum(rider.stream.held_back for rider in riders)
        self._due_s = 0.0

    def are_too_many(self, begin_ns: int) -> bool:
        """Whether more chunks than allowed are late or were not let in."""
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + 0.25
        lost = sum(rider.stream.held_back for rider in self._riders) - self._held_back
        late = sum(due >= begin_ns and end > due for rider in self._riders
                   for _, end, due in rider.chunks[-_LATEST:])
        return lost + late > self._allowed


class _Every:
    """Does something at most once in so many seconds."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action
        self._due_s = time.monotonic() + seconds

    def __call__(self) -> None:
        """Do it, if it is time."""
        if time.monotonic() >= self._due_s:
            self._due_s += self._seconds
            self._action()
