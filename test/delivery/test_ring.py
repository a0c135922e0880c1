"""The ring between two processes: nothing torn, nothing left behind, nobody waits."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from chunks import MS, ramp

from physis_core.delivery.ring import (
    Effect,
    RingFormat,
    RingReader,
    RingWriter,
    ServoFeedback,
    ServoState,
)
from physis_core.delivery.shared_cell import SharedCell
from physis_core.delivery.shared_file import FOLDER
from physis_core.errors import InputError

FORM = RingFormat(('a', 'b'), max_points=8, slots=4, effects=4)
MEASURED = np.array([0.1, 0.2])


@pytest.fixture
def writer(ring_name: str) -> Iterator[RingWriter]:
    writer = RingWriter(ring_name, FORM)
    yield writer
    writer.close()


@pytest.fixture
def reader(ring_name: str, writer: RingWriter) -> Iterator[RingReader]:
    reader = RingReader.open(ring_name)
    assert reader is not None
    yield reader
    reader.close()


def feedback(effects: int = 0, played: int = 0) -> ServoFeedback:
    return ServoFeedback(
        effects, 5, ServoState.PLAYING, 1, True, 10, played, 2, 1, 3, 250.0,
        np.array([1.0, 2.0]), np.array([3.0, 4.0]))


def test_a_chunk_arrives_as_it_was_written(writer: RingWriter, reader: RingReader) -> None:
    chunk = ramp(7, 1000 * MS, start=0.5, epoch=3)
    writer.write(chunk, MEASURED)
    control = reader.control()
    assert control is not None and control.written == 1
    ((read, measured),) = reader.new_chunks(control.written)
    assert measured == pytest.approx(MEASURED)
    for field in ('epoch', 'chunk', 'due_ns', 'period_ns', 'valid_until_ns', 'capture_ns',
                  'received_ns', 'started_ns', 'finished_ns'):
        assert getattr(read, field) == getattr(chunk, field), field
    assert (read.positions == chunk.positions).all()
    assert (read.velocities == chunk.velocities).all()
    assert not reader.new_chunks(control.written)


def test_a_reader_that_was_away_gets_the_newest_chunks(writer: RingWriter, reader: RingReader
                                                       ) -> None:
    for chunk in range(11):
        writer.write(ramp(chunk, chunk * 160 * MS), MEASURED)
    assert [chunk.chunk for chunk, _ in reader.new_chunks(11)] == [7, 8, 9, 10]


def test_a_short_chunk_fits_and_a_long_one_is_refused(writer: RingWriter, reader: RingReader
                                                      ) -> None:
    writer.write(ramp(0, 0, points=3), MEASURED)
    assert reader.new_chunks(1)[0][0].points == 3
    with pytest.raises(InputError, match='a slot of the ring holds 8'):
        writer.write(ramp(1, 0, points=9), MEASURED)


def test_control_reaches_the_reader(writer: RingWriter, reader: RingReader) -> None:
    assert reader.control() is None  # nothing was said yet
    writer.tell(epoch=4, active=True, stop='worker lost', heartbeat_ns=9)
    control = reader.control()
    assert control is not None
    assert (control.epoch, control.active, control.stop, control.heartbeat_ns) == (
        4, True, 'worker lost', 9)


def test_a_long_reason_is_cut(writer: RingWriter, reader: RingReader) -> None:
    writer.tell(epoch=1, active=True, stop='ü' * 500, heartbeat_ns=0)
    control = reader.control()
    assert control is not None and 60 < len(control.stop) <= 64


def test_feedback_and_effects_reach_the_writer(writer: RingWriter, reader: RingReader) -> None:
    assert writer.feedback() is None and not writer.new_effects()
    for count in range(6):
        reader.effect(count, Effect(1, count, 100 + count))
    reader.report(feedback(effects=6, played=8))
    seen = writer.feedback()
    assert seen is not None
    assert (seen.state, seen.played, seen.missed, seen.underruns, seen.limited) == (
        ServoState.PLAYING, 8, 2, 1, 3)
    assert seen.position == pytest.approx([1.0, 2.0])
    assert seen.velocity == pytest.approx([3.0, 4.0])
    assert [effect.chunk for effect in writer.new_effects()] == [2, 3, 4, 5]  # 4 are kept
    assert not writer.new_effects()


def test_a_new_servo_counts_anew(writer: RingWriter, reader: RingReader) -> None:
    for count in range(3):
        reader.effect(count, Effect(1, count, count))
    reader.report(feedback(effects=3))
    assert len(writer.new_effects()) == 3
    reader.effect(0, Effect(1, 9, 9))
    reader.report(feedback(effects=1))
    assert [effect.chunk for effect in writer.new_effects()] == [9]


def test_a_half_written_record_is_never_read() -> None:
    memory = memoryview(bytearray(SharedCell.size(64)))
    cell = SharedCell(memory)
    assert cell.read() is None
    cell.write(b'x' * 64)
    assert cell.read() == b'x' * 64
    memory[20:24] = b'torn'
    assert cell.read() is None


def test_the_memory_is_private_to_the_user(ring_name: str, writer: RingWriter) -> None:
    assert (FOLDER / f'physis-{ring_name}').stat().st_mode & 0o777 == 0o600


def test_a_name_in_use_is_refused(ring_name: str, writer: RingWriter) -> None:
    with pytest.raises(InputError, match='belongs to a process that is running'):
        RingWriter(ring_name, FORM)


@pytest.mark.parametrize('bad', ['', '../etc', 'a b', 'x' * 200])
def test_a_name_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(InputError, match='not usable'):
        RingWriter(bad, FORM)


def test_there_may_be_no_ring_yet(ring_name: str) -> None:
    assert RingReader.open(ring_name) is None


def test_memory_that_is_no_ring_is_refused(ring_name: str) -> None:
    file = Path(FOLDER / f'physis-{ring_name}')
    file.write_bytes(bytes(8192))
    with pytest.raises(InputError, match='version'):
        RingReader.open(ring_name)
    assert not file.exists()  # it belonged to nobody


def _write_forever(ring_name: str, ready: Connection) -> None:
    writer = RingWriter(ring_name, FORM)
    writer.tell(epoch=1, active=True, stop='', heartbeat_ns=0)
    ready.send('ready')
    chunk = 0
    while True:
        # Every value of a chunk is its number: a torn one would hold two.
        torn = ramp(chunk, chunk, start=float(chunk), speed=0.0)
        writer.write(torn, np.full(2, float(chunk)))
        chunk += 1


@pytest.fixture
def busy_writer(ring_name: str) -> Iterator[multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context('spawn')
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_write_forever, args=(ring_name, send), daemon=True)
    process.start()
    assert receive.poll(60) and receive.recv() == 'ready'
    yield process
    process.kill()
    process.join()


def test_a_busy_writer_is_never_read_half(
        ring_name: str, busy_writer: multiprocessing.process.BaseProcess) -> None:
    reader = RingReader.open(ring_name)
    assert reader is not None
    seen = 0
    newest = -1
    while seen < 300:
        control = reader.control()
        if control is None:
            continue
        for chunk, measured in reader.new_chunks(control.written):
            assert (chunk.positions == chunk.chunk).all()
            assert (measured == chunk.chunk).all()
            assert chunk.chunk > newest
            newest = chunk.chunk
            seen += 1
    busy_writer.kill()
    busy_writer.join()
    reader.close()


def test_a_killed_writer_is_noticed_and_cleaned_up(
        ring_name: str, busy_writer: multiprocessing.process.BaseProcess) -> None:
    reader = RingReader.open(ring_name)
    assert reader is not None and reader.writer_alive()
    assert busy_writer.pid is not None
    os.kill(busy_writer.pid, signal.SIGKILL)
    busy_writer.join()
    assert not reader.writer_alive()
    reader.close()  # removes what the dead one left: the fixture checks


def test_a_killed_writers_name_can_be_used_again(
        ring_name: str, busy_writer: multiprocessing.process.BaseProcess) -> None:
    old = RingReader.open(ring_name)
    assert old is not None
    busy_writer.kill()
    busy_writer.join()
    writer = RingWriter(ring_name, FORM)
    old.close()  # must not take the successor's memory away
    fresh = RingReader.open(ring_name)
    assert fresh is not None and fresh.writer_alive()
    fresh.close()
    writer.close()
