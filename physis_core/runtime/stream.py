"""The user's end of one stream."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from physis_core.errors import InputError, StreamError
from physis_core.planning.plan import Plan
from physis_core.runtime.boards import ObservationBoard, check_arrays

_MOST = 2 ** 63
_BOUNDS = (('seed', 0, _MOST - 1), ('period_ns', 0, 10 ** 18), ('lead_ns', 0, 10 ** 18),
           ('queue_chunks', 1, 10 ** 6), ('priority', -2 ** 31, 2 ** 31 - 1))
FIRST_EPOCH = 1
"""Epoch of the first stream in a slot; each reset, and each later stream there, has the next."""


@dataclass(frozen=True)
class StreamOptions:
    """How a stream is run.

    Attributes:
        seed: of its noise; same seed, same observations: same outputs.
        period_ns: interval between chunks let in [ns]; None: the plan's; 0: as fast as its cap of
            chunks in flight allows.
        lead_ns: planned time from letting a chunk in to its output taking effect [ns].  It sets
            the deadline and the ``lead_s`` that the model is told; None: no deadline.
        prompt: the model's prompt inputs by name.
        queue_chunks: finished chunks kept for :meth:`Stream.next_chunk`; while it is full no
            further chunk is let in.
        priority: under overload streams of a lower one give way first.
        skip_late: let no chunk in while an earlier one is overdue: one beat is lost instead of one
            late chunk after the other.
    """

    seed: int = 0
    period_ns: int | None = None
    lead_ns: int | None = None
    prompt: Mapping[str, np.ndarray] = field(default_factory=dict)
    queue_chunks: int = 8
    priority: int = 0
    skip_late: bool = False

    def __post_init__(self) -> None:
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if value is None and name in ('period_ns', 'lead_ns'):
                continue
            if not (isinstance(value, int | np.integer) and least <= value <= most):
                raise InputError(f'{name} is {value!r}; it is a whole number from {least} to '
                                 f'{most}')
        if self.skip_late and self.lead_ns is None:
            raise InputError('skip_late is set and lead_ns is not: without it no chunk is overdue')


@dataclass(frozen=True)
class FinishedChunk:
    """One chunk's outputs and where its time went (steady-clock ns).

    Attributes:
        stream: slot of the stream.
        epoch: epoch it belongs to.
        chunk: index in the epoch.
        outputs: by the names of ``ModelDescription.outputs``.
        capture_ns: capture of the oldest observation it used.
        received_ns: when that observation was given to ``observe``.
        release_ns: when the chunk was let in.
        started_ns: when its first stage took the observation.
        finished_ns: when its output was complete.
        due_ns: planned moment of effect: release + lead.
        observation_ids: the observation read at each denoising step.
    """

    stream: int
    epoch: int
    chunk: int
    outputs: Mapping[str, np.ndarray]
    capture_ns: int
    received_ns: int
    release_ns: int
    started_ns: int
    finished_ns: int
    due_ns: int
    observation_ids: tuple[int, ...]


class Stream:
    """A long-lived generation: observations in, chunks out.

    ``observe`` and ``next_chunk`` may be called from different threads.  The fields below the line
    belong to the engine's loop, under the engine's lock.
    """

    def __init__(self, slot: int, options: StreamOptions, plan: Plan, board: ObservationBoard,
                 needs_observation: bool, change: Callable[[Stream, str], None]) -> None:
        self.slot = slot
        self.options = options
        self.plan = plan
        self.board = board
        self._change = change
        self._pid = os.getpid()
        self._observe_lock = threading.Lock()
        self._identity = 0
        self._queue: queue.SimpleQueue[FinishedChunk | None] = queue.SimpleQueue()  # None: no more
        self._error: StreamError | None = None
        # ------------------------------------------------------------------------------------------
        self.epoch = 0
        self.released = 0
        self.completed = 0
        self.paused = False
        self.next_release_ns = 0
        self.needs_observation = needs_observation
        self.held_back = 0  # beats on which no chunk could enter
        self._held_from_ns = 0
        self._due_ns: deque[int] = deque()  # of the chunks under way
        self._fresh: list[FinishedChunk] = []  # finished and not in the queue yet
        self.keep_one_in = 1
        self.shed = 0

    # -- the user's side ---------------------------------------------------------------------------

    def observe(self, observation: Mapping[str, np.ndarray], capture_ns: int) -> int:
        """Give the newest observation; returns its identity (1, 2, ...).

        A chunk reads whatever is newest when its first stage starts.

        Args:
            observation: arrays by the model's names, shapes and types.
            capture_ns: capture time of its oldest part (``time.monotonic_ns`` clock).

        Raises:
            InputError: a wrong name, shape, type, or a value that is not finite; the newest
                observation is still the one before.
            StreamError: the stream has ended.
        """
        self._raise_if_ended()
        if not (isinstance(capture_ns, int | np.integer) and -_MOST <= capture_ns < _MOST):
            raise InputError(f'capture_ns is {capture_ns!r}; it is a whole number of nanoseconds '
                             'of the clock of `time.monotonic_ns()`')
        check_arrays('observation', observation, self.board.specs)
        with self._observe_lock:
            self._identity += 1
            first = self.board.newest_identity == 0
            self.board.write(self._identity, observation, capture_ns)
            if first:
                self._change(self, 'observed')
            return self._identity

    def next_chunk(self, timeout_s: float | None = None) -> FinishedChunk | None:
        """The next finished chunk, in order; None if none came in time.

        Raises:
            StreamError: the stream has ended (``WorkerLost``, ``OrderViolation``, closed).
        """
        self._raise_if_forked()
        if timeout_s is not None:
            timeout_s = min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        try:
            chunk = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if chunk is None:
            self._queue.put(None)  # for whoever waits or asks after this
            assert self._error is not None
            raise self._error
        if self._queue.qsize() + 1 >= self.options.queue_chunks:
            self._change(self, 'consumed')
        return chunk

    def reset(self) -> int:
        """Start a new epoch: drop everything in flight, forget the history; returns the epoch.

        The next chunk waits for an observation made after this call.
        """
        self._raise_if_ended()
        with self._observe_lock:
            self._change(self, 'reset')
            return self.epoch

    def pause(self, paused: bool = True) -> None:
        """Let no chunk in until unpaused; what is in flight is finished."""
        self._raise_if_ended()
        self._change(self, 'pause' if paused else 'resume')

    def close(self) -> None:
        """End the stream and give its place back; in a forked child it does nothing."""
        if os.getpid() == self._pid:
            self._change(self, 'close')

    @property
    def ended(self) -> StreamError | None:
        """Why the stream has ended; None: it has not."""
        return self._error

    def _raise_if_ended(self) -> None:
        self._raise_if_forked()
        if self._error is not None:
            raise self._error

    def _raise_if_forked(self) -> None:
        if os.getpid() != self._pid:
            raise StreamError(f'the stream belongs to process {self._pid}, this is a fork of it; '
                              'start an engine here')

    # -- the engine's side -------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Chunks let in and not finished."""
        return self.released - self.completed

    @property
    def period_ns(self) -> int:
        """Interval between chunks let in [ns]; 0: as fast as there is room."""
        period_ns = self.options.period_ns
        return self.plan.period_us * 1000 if period_ns is None else period_ns

    @property
    def sheds_next(self) -> bool:
        """Whether the next chunk is shed: not let in, its beat left empty."""
        return (self.released + self.shed) % self.keep_one_in > 0

    def is_late(self, now_ns: int) -> bool:
        """Whether the next beat is left empty because an earlier chunk is overdue."""
        return self.options.skip_late and bool(self._due_ns) and self._due_ns[0] < now_ns

    @property
    def has_room(self) -> bool:
        """Whether another chunk may be let in."""
        return (self.in_flight < self.plan.max_in_flight
                and self.in_flight + len(self._fresh) + self._queue.qsize()
                < self.options.queue_chunks + self.plan.max_in_flight)

    def hold_back(self, now_ns: int) -> None:
        """Count the beats that pass while the devices have no room for a chunk that should enter.

        A full queue of finished chunks is no such beat: then it is the user who is slow.
        """
        if not self.period_ns or (self.in_flight < self.plan.max_in_flight and not self.has_room):
            return
        begin_ns = max(self.next_release_ns, self._held_from_ns)
        beats = (now_ns - begin_ns) // self.period_ns
        self.held_back += beats
        self._held_from_ns = begin_ns + beats * self.period_ns

    def restart(self, epoch: int) -> None:
        """Begin an epoch, with nothing in flight and nothing seen."""
        self._fresh.clear()
        with suppress(queue.Empty):
            while self._queue.get_nowait() is not None:
                pass
            self._queue.put(None)
        self.board.clear()
        self.epoch = epoch
        self.released = self.completed = 0
        self._due_ns.clear()
        self.next_release_ns = time.monotonic_ns()

    def enter(self, due_ns: int) -> None:
        """Note that a chunk has been let in."""
        self.released += 1
        self._due_ns.append(due_ns)

    def deliver(self, chunk: FinishedChunk) -> None:
        """Take a finished chunk; :meth:`hand_over` gives it to whoever waits."""
        self.completed += 1
        self._due_ns.popleft()
        self._fresh.append(chunk)

    def hand_over(self) -> None:
        """Let the user have what was delivered."""
        for chunk in self._fresh:
            self._queue.put(chunk)
        self._fresh.clear()

    def end(self, error: StreamError) -> None:
        """End the stream; whoever waits for a chunk is told, once all those before were taken."""
        if self._error is None:
            self._error = error
            self.hand_over()
            self._queue.put(None)
