"""From the engine's finished chunks to topics and ring: one thread, one lock.

The delivery thread takes chunks; the executor thread resets, stops and asks for numbers.  Whatever
both touch is guarded by `_lock`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from physis_core.delivery.buffer import DeliveryCounts, OutputBuffer
from physis_core.delivery.chunk import (
    Floats,
    PlannedChunk,
    finite_difference,
    finite_positions,
)
from physis_core.delivery.ring import RingWriter, ServoFeedback
from physis_core.delivery.timeline import Timeline
from physis_core.errors import InputError, StreamError
from physis_core.observability.stream_account import StreamAccount, StreamNumbers
from physis_core.runtime.engine import FinishedChunk, Stream
from physis_core.units import NS_PER_S
from physis_ros.policy import POSITIONS, Policy

_WAIT_S = 0.1
# Chunks whose effect is still awaited; more than the ring holds would never be played.
_AWAITED_CHUNKS = 64
# A servo that has not ticked for so long is not there.
_SERVO_GONE_NS = NS_PER_S
_NEVER_NS = 2**63


class ChunkDelivery:
    """Delivers the chunks of one stream until it is closed or the stream ends."""

    def __init__(self, stream: Stream, policy: Policy, buffer: OutputBuffer, ring: RingWriter,
                 account: StreamAccount, first_ns: int, measured: Callable[[], Floats],
                 publish: Callable[[PlannedChunk], None], give_up: Callable[[Timeline], None],
                 failed: Callable[[str], None]) -> None:
        """Prepare to deliver; :meth:`start` does.

        Args:
            stream: an open stream.
            policy: what its outputs mean.
            buffer: decides about chunks.
            ring: to the servo.
            account: keeps the numbers.
            first_ns: from going on after a pause to when the first chunk is due, at most.
            measured: where the joints are now (called in the delivery thread).
            publish: publishes a delivered chunk (called in the delivery thread).
            give_up: told what was planned when that is given up, by a stop, a reset or the end
                (called by whoever stops, resets or closes, when no chunk can come any more).
            failed: told once when the stream ends by itself, or makes actions that cannot be
                executed (called in the delivery thread).
        """
        self.stream = stream
        self._policy = policy
        self._buffer = buffer
        self._ring = ring
        self._account = account
        self._first_ns = first_ns
        self._measured = measured
        self._publish = publish
        self._give_up = give_up
        self._failed = failed
        self._lock = threading.Lock()
        self._awaited: OrderedDict[tuple[int, int], PlannedChunk] = OrderedDict()
        self._sent: deque[tuple[PlannedChunk, int]] = deque(maxlen=_AWAITED_CHUNKS)
        self._underruns_before = self._underruns_seen = 0
        self._paused = self._wanted_pause = False
        self._excused_until_ns = 0
        self._closed = threading.Event()
        self._begin_epoch(stream.epoch)
        self._thread = threading.Thread(target=self._run, name='physis-delivery', daemon=True)

    def start(self) -> None:
        """Start the delivery thread."""
        self._thread.start()

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._buffer.epoch

    def reset(self) -> int:
        """Begin a new epoch in engine, buffer and ring; lifts a stop.  Returns the epoch.

        Raises:
            StreamError: the stream has ended; open another one.
        """
        # Not under the lock: the engine takes its own, and the delivery thread may be waiting
        # there.  A chunk of the old epoch that slips in between is dropped by its number.
        epoch = self.stream.reset()
        with self._lock:
            self._give_up(self._buffer.plan)
            self._begin_epoch(epoch)
        return epoch

    def pause(self, paused: bool, *, wanted: bool = False) -> None:
        """Let no chunk in until unpaused; a stream that has ended makes none anyway.

        What a ``wanted`` pause costs in rates and underruns is nobody's fault, and not counted.
        """
        with suppress(StreamError):
            self.stream.pause(paused)
        with self._lock:
            if wanted:
                self._wanted_pause, self._excused_until_ns = True, _NEVER_NS
            if self._paused and not paused:
                if self._wanted_pause or not self._buffer.counts.delivered:
                    self._account.resume(time.monotonic_ns() + self._first_ns)
                self._wanted_pause = False
            self._paused = paused

    def promised(self, points: int, lead_ns: int, now_ns: int) -> Floats:
        """Positions ``[points, joints]`` already promised at the begin of the next chunk.

        Where nothing is planned they repeat the last plan, or else where the joints are.
        """
        measured = self._measured()
        with self._lock:
            due_ns = self._buffer.next_due_ns(now_ns + lead_ns)
            positions = np.empty((points, len(self._policy.joints)))
            for point in range(points):
                time_ns = due_ns + point * self._policy.control_period_ns
                sample = (self._buffer.plan.sample(time_ns)
                          or self._buffer.plan.last_before(time_ns))
                positions[point] = measured if sample is None else sample.position
            return positions

    def stop(self, reason: str) -> None:
        """Latch a stop: first no more chunks, then everybody is told to come to rest.

        ``reason`` is for diagnostics.
        """
        with suppress(StreamError):
            self.stream.pause(True)
        with self._lock:
            self._ring.tell(epoch=self._buffer.epoch, active=True, stop=reason,
                            heartbeat_ns=time.monotonic_ns())
            self._give_up(self._buffer.plan)
            self._buffer.plan.clear()
            now_ns = time.monotonic_ns()
            for key in [key for key, chunk in self._awaited.items() if chunk.due_ns > now_ns]:
                del self._awaited[key]

    def close(self) -> None:
        """Stop delivering, end the stream, and let the servo come to rest and be silent."""
        self._closed.set()
        self.stream.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            self._give_up(self._buffer.plan)
            self._ring.tell(epoch=self._buffer.epoch, active=False, stop='',
                            heartbeat_ns=time.monotonic_ns())

    def sent(self, chunk: PlannedChunk, sent_ns: int) -> None:
        """A chunk went to a controller as a trajectory (called by the thread that sent it)."""
        # Without our lock: the sender holds its own, which the delivery thread takes under ours.
        self._sent.append((chunk, sent_ns))

    def look_at_servo(self, now_ns: int) -> ServoFeedback | None:
        """Say that this side is alive, and take in what has taken effect.

        Where a servo plays, it says so itself.  Else a trajectory takes effect at its planned
        start, or when it is sent, if that is later; what the controller does then is not seen.
        """
        with self._lock:
            self._ring.beat(now_ns)
            feedback = self._ring.feedback()
            if feedback is not None:
                self._account.servo_played(feedback.played, feedback.tick_ns)
                self._look_at_underruns(feedback, now_ns)
                for effect in self._ring.new_effects():
                    self._took_effect((effect.epoch, effect.chunk), effect.effect_ns, now_ns)
            begun = list(self._begun(now_ns))
            if not servo_there(feedback, now_ns):
                for chunk, effect_ns in begun:
                    self._took_effect((chunk.epoch, chunk.chunk), effect_ns, now_ns)
            return feedback

    def numbers(self, now_ns: int) -> tuple[StreamNumbers, DeliveryCounts, int]:
        """What was measured, what was delivered, and the buffer's depth."""
        with self._lock:
            counts = DeliveryCounts(**vars(self._buffer.counts))
            return self._account.numbers(now_ns), counts, self._buffer.depth(now_ns)

    def underruns(self, feedback: ServoFeedback) -> int:
        """Of the servo, since the epoch began."""
        return max(feedback.underruns - self._underruns_before, 0)

    def _look_at_underruns(self, feedback: ServoFeedback, now_ns: int) -> None:
        """Leave out those that a wanted pause has caused, until its first chunk is due."""
        if self._excused_until_ns and feedback.underruns > self._underruns_seen:
            self._underruns_before += feedback.underruns - self._underruns_seen
        self._underruns_seen = feedback.underruns
        if now_ns > self._excused_until_ns:
            self._excused_until_ns = 0

    def _begun(self, now_ns: int) -> Iterator[tuple[PlannedChunk, int]]:
        """The trajectories that have begun since the last call, and when each did."""
        while self._sent:
            chunk, sent_ns = self._sent[0]
            effect_ns = max(chunk.due_ns, sent_ns)
            if effect_ns > now_ns:
                return
            self._sent.popleft()
            # A controller gives up a trajectory as soon as another one arrives.
            if not self._sent or self._sent[0][1] >= effect_ns:
                yield chunk, effect_ns

    def _took_effect(self, key: tuple[int, int], effect_ns: int, now_ns: int) -> None:
        chunk = self._awaited.pop(key, None)
        if chunk is not None:
            age = chunk.age_at(effect_ns)
            self._account.took_effect(
                (age.capture_ns, age.queue_ns, age.response_ns, age.handoff_ns), now_ns)

    def _begin_epoch(self, epoch: int) -> None:
        feedback = self._ring.feedback()
        self._underruns_before = self._underruns_seen = feedback.underruns if feedback else 0
        self._buffer.begin_epoch(epoch)
        self._account.begin_epoch()
        self._account.resume(time.monotonic_ns() + self._first_ns)
        if not self._wanted_pause:
            self._excused_until_ns = 0
        self._awaited.clear()
        self._ring.tell(epoch=epoch, active=True, stop='', heartbeat_ns=time.monotonic_ns())

    # -- delivery thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                finished = self.stream.next_chunk(_WAIT_S)
                if finished is not None:
                    self._deliver(finished)
            except (StreamError, InputError) as error:
                if not self._closed.is_set():
                    self._failed(str(error))
                if self.stream.ended is not None:
                    return

    def _deliver(self, finished: FinishedChunk) -> None:
        chunk = planned(finished, self._policy)
        measured = self._measured()
        with self._lock:
            if self._ring.control.stop:
                return
            now_ns = time.monotonic_ns()
            delivery = self._buffer.offer(chunk, now_ns)
            if chunk.epoch == self._buffer.epoch:
                self._account.finished(
                    chunk.finished_ns, chunk.due_ns, now_ns, dropped=delivery.chunk is None)
            if delivery.chunk is None:
                return
            self._ring.write(delivery.chunk, measured)
            self._account.delivered(chunk.capture_ns, now_ns)
            if not self._wanted_pause:
                self._excused_until_ns = min(self._excused_until_ns, chunk.due_ns)
            self._awaited[chunk.epoch, chunk.chunk] = chunk
            if len(self._awaited) > _AWAITED_CHUNKS:
                self._awaited.popitem(last=False)
            # Under the lock, so that nothing of an old epoch is published after a reset returned.
            self._publish(delivery.chunk)


def servo_there(feedback: ServoFeedback | None, now_ns: int) -> bool:
    """Whether a servo reads the ring."""
    return feedback is not None and now_ns - feedback.tick_ns <= _SERVO_GONE_NS


def planned(finished: FinishedChunk, policy: Policy) -> PlannedChunk:
    """A finished chunk as control points.

    Raises:
        InputError: wrong size, or a position that is not finite.
    """
    name = f'chunk {finished.chunk} of epoch {finished.epoch}'
    positions = finite_positions(name, finished.outputs[POSITIONS], len(policy.joints))
    period_ns = policy.control_period_ns
    return PlannedChunk(
        epoch=finished.epoch, chunk=finished.chunk, due_ns=finished.due_ns, period_ns=period_ns,
        valid_until_ns=finished.due_ns + len(positions) * period_ns,
        capture_ns=finished.capture_ns, received_ns=finished.received_ns,
        started_ns=finished.started_ns, finished_ns=finished.finished_ns,
        positions=np.ascontiguousarray(positions),
        velocities=finite_difference(positions, period_ns))
