"""Messages wait for their time, and are forgotten by a reset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import Empty, Queue

import pytest

from physis_ros.timed_publisher import TimedPublisher

MS = 1_000_000
FAR_NS = 3600 * 1000 * MS


@pytest.fixture
def sent() -> Queue[tuple[str, int]]:
    return Queue()


@pytest.fixture
def timed(sent: Queue[tuple[str, int]]) -> Iterator[TimedPublisher[str]]:
    publisher = TimedPublisher[str](
        lambda message: sent.put((message, time.monotonic_ns())), early_ns=20 * MS)
    yield publisher
    publisher.close()


def test_a_message_is_sent_early_by_the_margin_and_no_earlier(
        timed: TimedPublisher[str], sent: Queue[tuple[str, int]]) -> None:
    due_ns = time.monotonic_ns() + 120 * MS
    timed.give('a', due_ns)
    message, sent_ns = sent.get(timeout=10.0)
    assert message == 'a'
    assert sent_ns >= due_ns - 20 * MS


def test_order_is_kept_and_what_is_late_goes_at_once(
        timed: TimedPublisher[str], sent: Queue[tuple[str, int]]) -> None:
    now_ns = time.monotonic_ns()
    for message, due_ns in (('late', now_ns - 50 * MS), ('a', now_ns), ('b', now_ns + 60 * MS)):
        timed.give(message, due_ns)
    assert [sent.get(timeout=10.0)[0] for _ in range(3)] == ['late', 'a', 'b']


def test_what_is_forgotten_is_never_sent(
        timed: TimedPublisher[str], sent: Queue[tuple[str, int]]) -> None:
    timed.give('old epoch', time.monotonic_ns() + FAR_NS)
    timed.clear()
    timed.give('sentinel', time.monotonic_ns())
    assert sent.get(timeout=10.0)[0] == 'sentinel'
    with pytest.raises(Empty):
        sent.get_nowait()


def test_closing_does_not_wait_for_what_is_due_later(timed: TimedPublisher[str]) -> None:
    timed.give('never', time.monotonic_ns() + FAR_NS)
    timed.close()
