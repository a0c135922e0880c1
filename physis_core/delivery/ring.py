"""The shared-memory ring between the engine's side and the servo process.

Two processes, no locks, each record with one owner::

    writer (node with the engine)            reader (servo)
    control   epoch, active, stop     ──▶
    slots     the newest chunks       ──▶    plays them
                                      ◀──    feedback  counters, state, last command
                                      ◀──    effects   which chunk took effect when

All times are of the steady clock, which the processes of one machine share.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from physis_core.delivery.chunk import Floats, PlannedChunk
from physis_core.delivery.shared_cell import SharedCell
from physis_core.delivery.shared_file import SharedFile
from physis_core.errors import InputError

VERSION = 1
_HEADER_BYTES = 4096
_HEADER = struct.Struct('<8sI')
_MAGIC = b'physis.r'
_CONTROL = struct.Struct('<QI?q128s')
_SLOT = struct.Struct('<QIQqqqqqqqI')
_FEEDBACK = struct.Struct('<QqBI?QQQQQd')
_EFFECT = struct.Struct('<QIQq')
_STOP_REASON_BYTES = 128


class ServoState(IntEnum):
    """What the servo is doing."""

    IDLE = 0
    """Publishes nothing: inactive, or no chunk of this epoch has come yet."""

    PLAYING = 1
    """Plays control points."""

    HOLDING = 2
    """Has nothing valid to play: decelerates, then holds its position."""

    STOPPED = 3
    """As holding, and latched until a reset."""


@dataclass(frozen=True)
class RingFormat:
    """Sizes of a ring, written into its head so that both sides agree.

    Attributes:
        joints: joint names, in the order of every array.
        max_points: most control points of a chunk.
        slots: how many of the newest chunks are kept.
        effects: how many of the newest effects are kept.
    """

    joints: tuple[str, ...]
    max_points: int
    slots: int = 16
    effects: int = 64

    @property
    def slot_bytes(self) -> int:
        """Payload of one chunk: positions, velocities, and the measured joints."""
        return _SLOT.size + 8 * len(self.joints) * (2 * self.max_points + 1)

    @property
    def feedback_bytes(self) -> int:
        """Payload of the feedback: counters, then the commanded positions and velocities."""
        return _FEEDBACK.size + 16 * len(self.joints)


@dataclass(frozen=True)
class RingControl:
    """What the writer tells the servo besides chunks.

    Attributes:
        written: chunks written since the ring was created.
        epoch: the current epoch; older chunks are dropped.
        active: whether the servo may publish.
        heartbeat_ns: when the writer last said that it is alive.
        stop: reason of a latched stop; empty: none.
    """

    written: int = 0
    epoch: int = 0
    active: bool = False
    heartbeat_ns: int = 0
    stop: str = ''


@dataclass(frozen=True, eq=False)
class ServoFeedback:
    """How the servo is doing; counters count from its start.

    Attributes:
        effects: effects written.
        tick_ns: when it last ticked.
        state: what it is doing.
        epoch: the epoch it plays.
        real_time: whether it runs under SCHED_FIFO.
        ticks: commands that were due.
        played: ticks at which a valid control point was played.
        missed: ticks skipped because the process was late.
        underruns: times it ran out of valid points and held.
        limited: ticks at which a joint limit changed the command.
        rate_hz: the rate it was asked for.
        position: commanded ``[joints]``; NaN before the first command.
        velocity: commanded ``[joints]``.
    """

    effects: int
    tick_ns: int
    state: ServoState
    epoch: int
    real_time: bool
    ticks: int
    played: int
    missed: int
    underruns: int
    limited: int
    rate_hz: float
    position: Floats
    velocity: Floats


@dataclass(frozen=True)
class Effect:
    """Chunk ``chunk`` of ``epoch`` took effect: its first point was commanded at ``effect_ns``."""

    epoch: int
    chunk: int
    effect_ns: int


class _Ring:
    """The memory and the cells of both sides."""

    def __init__(self, shared: SharedFile, form: RingFormat) -> None:
        self.format = form
        self._shared = shared
        self._views: list[memoryview] = []
        self._at = _HEADER_BYTES
        self._control = self._cell(_CONTROL.size)
        self._slots = [self._cell(form.slot_bytes) for _ in range(form.slots)]
        self._feedback = self._cell(form.feedback_bytes)
        self._effects = [self._cell(_EFFECT.size) for _ in range(form.effects)]

    @staticmethod
    def size(form: RingFormat) -> int:
        """Bytes of the whole ring."""
        return (_HEADER_BYTES + SharedCell.size(_CONTROL.size)
                + form.slots * SharedCell.size(form.slot_bytes)
                + SharedCell.size(form.feedback_bytes)
                + form.effects * SharedCell.size(_EFFECT.size))

    def close(self) -> None:
        """Let go of the memory."""
        for view in self._views:
            view.release()
        self._shared.close()

    def _cell(self, payload_bytes: int) -> SharedCell:
        begin, self._at = self._at, self._at + SharedCell.size(payload_bytes)
        self._views.append(self._shared.memory[begin:self._at])
        return SharedCell(self._views[-1])


class RingWriter(_Ring):
    """The side of the engine; used by one thread at a time."""

    def __init__(self, name: str, form: RingFormat) -> None:
        """Create the ring.

        Raises:
            InputError: the name is in use by a running process, or names need too much room.
        """
        names = json.dumps(
            {'joints': form.joints, 'max_points': form.max_points, 'slots': form.slots,
             'effects': form.effects}).encode()
        header = _HEADER.pack(_MAGIC, VERSION) + struct.pack('<I', len(names)) + names
        if len(header) > _HEADER_BYTES:
            raise InputError(f'the names of {len(form.joints)} joints take {len(names)} bytes, '
                             f'there is room for {_HEADER_BYTES - 16}; shorten them')
        super().__init__(SharedFile.create(name, header, self.size(form)), form)
        self._state = RingControl()
        self._effects_read = 0

    @property
    def control(self) -> RingControl:
        """What was last told to the servo."""
        return self._state

    def tell(self, *, epoch: int, active: bool, stop: str, heartbeat_ns: int) -> None:
        """Tell the servo the epoch, whether it may publish, and why it must stop ('': play)."""
        self._write_control(
            RingControl(self._state.written, epoch, active, heartbeat_ns, stop))

    def beat(self, heartbeat_ns: int) -> None:
        """Tell the servo that this side is alive."""
        state = self._state
        self._write_control(
            RingControl(state.written, state.epoch, state.active, heartbeat_ns, state.stop))

    def write(self, chunk: PlannedChunk, measured: Floats) -> None:
        """Hand a chunk to the servo; the oldest slot is overwritten.

        Args:
            chunk: at most ``max_points`` control points.
            measured: where the joints are, ``[joints]``; a first command starts from there.

        Raises:
            InputError: more points than the ring holds; nothing was written.
        """
        if chunk.points > self.format.max_points:
            raise InputError(f'chunk {chunk.chunk} has {chunk.points} control points, a slot of '
                             f'the ring holds {self.format.max_points}')
        state = self._state
        self._slots[state.written % self.format.slots].write(b''.join((
            _SLOT.pack(
                state.written, chunk.epoch, chunk.chunk, chunk.due_ns, chunk.period_ns,
                chunk.valid_until_ns, chunk.capture_ns, chunk.received_ns, chunk.started_ns,
                chunk.finished_ns, chunk.points),
            chunk.positions.astype('<f8').tobytes(), chunk.velocities.astype('<f8').tobytes(),
            measured.astype('<f8').tobytes())))
        self._write_control(RingControl(
            state.written + 1, state.epoch, state.active, state.heartbeat_ns, state.stop))

    def feedback(self) -> ServoFeedback | None:
        """What the servo last reported; None: no servo yet."""
        payload = self._feedback.read()
        if payload is None:
            return None
        (effects, tick_ns, state, epoch, real_time, ticks, played, missed, underruns, limited,
         rate_hz) = _FEEDBACK.unpack_from(payload)
        command = np.frombuffer(payload, '<f8', offset=_FEEDBACK.size).reshape(2, -1)
        return ServoFeedback(
            effects, tick_ns, ServoState(state), epoch, real_time, ticks, played, missed,
            underruns, limited, rate_hz, command[0], command[1])

    def new_effects(self) -> list[Effect]:
        """The effects since the last call; at most the newest ``effects`` of the format."""
        feedback = self.feedback()
        if feedback is None:
            return []
        if feedback.effects < self._effects_read:  # another servo has started to count anew
            self._effects_read = 0
        first = max(self._effects_read, feedback.effects - self.format.effects)
        self._effects_read = feedback.effects
        found = []
        for count in range(first, feedback.effects):
            payload = self._effects[count % self.format.effects].read()
            if payload is not None:
                number, *effect = _EFFECT.unpack(payload)
                if number == count:
                    found.append(Effect(*effect))
        return found

    def _write_control(self, state: RingControl) -> None:
        self._state = state
        reason = state.stop.encode()[:_STOP_REASON_BYTES]
        self._control.write(_CONTROL.pack(
            state.written, state.epoch, state.active, state.heartbeat_ns, reason))


class RingReader(_Ring):
    """The side of the servo; used by one thread."""

    def __init__(self, shared: SharedFile) -> None:
        super().__init__(shared, _read_format(shared))
        self._chunks_read = 0

    @classmethod
    def open(cls, name: str) -> RingReader | None:
        """Open the ring; None where there is none (yet).

        Raises:
            InputError: the memory is no ring, or one of another version.
        """
        shared = SharedFile.open(name)
        return None if shared is None else cls(shared)

    def writer_alive(self) -> bool:
        """Whether the process that created the ring lives."""
        return self._shared.creator_alive()

    def control(self) -> RingControl | None:
        """What the writer says; None while it is being written."""
        payload = self._control.read()
        if payload is None:
            return None
        written, epoch, active, heartbeat_ns, stop = _CONTROL.unpack(payload)
        return RingControl(written, epoch, active, heartbeat_ns,
                           stop.rstrip(b'\0').decode(errors='ignore'))

    def new_chunks(self, written: int) -> list[tuple[PlannedChunk, Floats]]:
        """Chunks (and measured joints) written since the last call, oldest first."""
        first = max(self._chunks_read, written - self.format.slots)
        self._chunks_read = written
        found = []
        for count in range(first, written):
            payload = self._slots[count % self.format.slots].read()
            if payload is not None and _SLOT.unpack_from(payload)[0] == count:
                found.append(self._chunk(payload))
        return found

    def report(self, feedback: ServoFeedback) -> None:
        """Replace the feedback."""
        self._feedback.write(b''.join((
            _FEEDBACK.pack(
                feedback.effects, feedback.tick_ns, feedback.state, feedback.epoch,
                feedback.real_time, feedback.ticks, feedback.played, feedback.missed,
                feedback.underruns, feedback.limited, feedback.rate_hz),
            feedback.position.astype('<f8').tobytes(), feedback.velocity.astype('<f8').tobytes())))

    def effect(self, count: int, effect: Effect) -> None:
        """Write the ``count``-th effect; to be followed by feedback that says ``count + 1``."""
        self._effects[count % self.format.effects].write(
            _EFFECT.pack(count, effect.epoch, effect.chunk, effect.effect_ns))

    def _chunk(self, payload: bytes) -> tuple[PlannedChunk, Floats]:
        _, epoch, number, *times_ns, points = _SLOT.unpack_from(payload)
        joints = len(self.format.joints)
        values = np.frombuffer(payload, '<f8', offset=_SLOT.size)
        size = points * joints
        due, period, valid_until, capture, received, started, finished = times_ns
        return PlannedChunk(
            epoch, number, due, period, valid_until, capture, received, started, finished,
            values[:size].reshape(points, joints),
            values[size:2 * size].reshape(points, joints)), values[2 * size:2 * size + joints]


def _read_format(shared: SharedFile) -> RingFormat:
    magic, version = _HEADER.unpack_from(shared.memory)
    if magic != _MAGIC or version != VERSION:
        shared.close()
        raise InputError(f'the shared memory is a ring of version {version}, this is version '
                         f'{VERSION}; start both nodes from the same installation')
    (length,) = struct.unpack_from('<I', shared.memory, _HEADER.size)
    begin = _HEADER.size + 4
    data = json.loads(bytes(shared.memory[begin:begin + length]))
    return RingFormat(tuple(data['joints']), data['max_points'], data['slots'], data['effects'])


