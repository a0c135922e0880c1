"""Shared words and the newest observation; the bell that goes with them."""

from __future__ import annotations

import threading
import time

import numpy as np

from physis_core.models.protocol import TensorSpec
from physis_core.runtime.bell import Bell
from physis_core.runtime.boards import CLOSED, ControlBoard, ObservationBoard
from physis_core.shared_block import SharedBlock

OBSERVED = {'image': TensorSpec((8, 8, 3), 'uint8'), 'joints': TensorSpec((6,))}


def seen(value: int) -> dict[str, np.ndarray]:
    return {'image': np.full((8, 8, 3), value % 256, np.uint8),
            'joints': np.full(6, value, np.float32)}


def test_the_control_board_is_one_memory_for_all() -> None:
    board = ControlBoard.create(hosts=3, devices=5, streams=2)
    other = ControlBoard(SharedBlock.attach(board.block.address), 3, 5, 2)
    assert board.epochs.tolist() == [CLOSED, CLOSED]
    fields = ('heartbeat_ns', 'attention', 'requests', 'epochs', 'resets', 'bells')
    for value, name in enumerate(fields):
        getattr(board, name)[:] = value + 1
    for value, name in enumerate(fields):
        assert set(getattr(other, name).tolist()) == {value + 1}
    assert [len(getattr(board, name)) for name in fields] == [3, 5, 3, 2, 1, 4]


def test_the_newest_observation_wins_and_can_be_forgotten() -> None:
    board = ObservationBoard.create(OBSERVED)
    reader = ObservationBoard(SharedBlock.attach(board.block.address), OBSERVED)
    assert reader.read() is None
    for identity in range(1, 11):
        board.write(identity, seen(identity), capture_ns=identity * 1000)
    observation = reader.read()
    assert observation is not None
    assert (observation.identity, observation.capture_ns) == (10, 10_000)
    assert (observation.arrays['joints'] == 10).all()
    board.clear()
    assert reader.read() is None
    assert (observation.arrays['joints'] == 10).all()  # a copy


def test_a_reader_never_sees_half_of_one_and_half_of_another() -> None:
    board = ObservationBoard.create(OBSERVED)
    reader = ObservationBoard(SharedBlock.attach(board.block.address), OBSERVED)
    board.write(1, seen(1), 1)
    stop = threading.Event()

    def write() -> None:
        identity = 2
        while not stop.is_set():
            board.write(identity, seen(identity), identity)
            identity += 1

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    try:
        for _ in range(2000):
            observation = reader.read()
            assert observation is not None
            assert observation.identity >= last
            last = observation.identity
            assert (observation.arrays['joints'] == observation.identity).all()
            assert (observation.arrays['image'] == observation.identity % 256).all()
    finally:
        stop.set()
        writer.join()


def test_a_bell_wakes_whoever_waits_and_is_not_missed() -> None:
    words = np.zeros(2, np.uint32)
    waiter, ringer = Bell(words, 1, ringer=0), Bell(words, 1, ringer=5)
    value = waiter.read()
    ringer.ring()  # between the look and the sleep
    started = time.monotonic()
    waiter.wait(value, 20_000_000_000)
    value = waiter.read()
    thread = threading.Timer(0.05, ringer.ring)
    thread.start()
    waiter.wait(value, 20_000_000_000)
    assert time.monotonic() - started < 15
    thread.join()
    assert waiter.read() != value
    assert words[0] == 0


def test_a_bell_waits_no_longer_than_told() -> None:
    bell = Bell(np.zeros(1, np.uint32), 0, ringer=0, spin=3)
    before = time.monotonic()
    bell.wait(bell.read(), 10_000_000)
    bell.wait(bell.read(), 0)
    bell.wait(bell.read(), -5)
    assert time.monotonic() - before >= 0.009
