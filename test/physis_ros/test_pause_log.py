"""What the log says of inputs that stay away; the test keeps the time."""

from __future__ import annotations

import pytest

from physis_ros.pause_log import PauseLog

S = 1_000_000_000


class Lines:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.infos: list[str] = []
        self.warnings: list[str] = []

    def info(self, message: str) -> None:
        self.infos.append(message)

    def warning(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def log(lines: Lines) -> PauseLog:
    return PauseLog(lines)


def test_after_a_reset_inputs_are_awaited_not_missed(log: PauseLog, lines: Lines) -> None:
    log.forgotten(0)
    for number, names in enumerate((['front', 'wrist'], ['front', 'wrist'], ['front'], [])):
        log.look(names, number * S // 50)
    assert lines.infos == ['waiting for input from front, wrist'] and not lines.warnings


def test_a_clock_that_jumps_all_the_time_does_not_fill_the_log(log: PauseLog, lines: Lines) -> None:
    for tick in range(50 * 12):
        log.forgotten(tick * S // 50)
        log.look(['front'], tick * S // 50)
    assert len(lines.infos) == 6


def test_what_does_not_come_is_missed_in_the_end(log: PauseLog, lines: Lines) -> None:
    log.forgotten(0)
    for tick in range(50 * 60):
        log.look(['joints'], tick * S // 50)
    assert lines.warnings == ['no fresh input from joints: paused']


def test_an_input_that_fails_is_said_at_once(log: PauseLog, lines: Lines) -> None:
    log.forgotten(0)
    log.look([], S // 50)
    log.look(['front'], S // 25)
    assert lines.warnings == ['no fresh input from front: paused']


def test_an_input_at_its_limit_does_not_fill_the_log(log: PauseLog, lines: Lines) -> None:
    for tick in range(50 * 12):  # twelve seconds; every other look finds it stale
        log.look(['front'] if tick % 2 else [], tick * S // 50)
    assert len(lines.warnings) == 3
    assert lines.warnings[0] == 'no fresh input from front: paused'
    assert '(124 pauses since the last warning)' in lines.warnings[1]
