"""A host is started again at once, unless that was in vain before."""

from __future__ import annotations

from physis_core.runtime.restarts import Restarts

S = 1_000_000_000


def pauses_s(restarts: Restarts, faults: int, lived_ns: int, tasks_each: int = 0) -> list[float]:
    """The pause before each start [s] of a host that lives so long and does so many tasks."""
    now_ns, tasks, seen = 1000 * S, 0, []
    for _ in range(faults):
        wait_ns = restarts.wait_ns(now_ns, tasks)
        seen.append(wait_ns / S)
        now_ns += wait_ns
        assert restarts.wait_ns(now_ns, tasks) == 0
        restarts.started(now_ns, tasks)
        now_ns += lived_ns
        tasks += tasks_each
    return seen


def test_starts_in_vain_are_paced_ever_slower_up_to_a_limit() -> None:
    assert pauses_s(Restarts(0), 17, 0) == [0] * 10 + [0.5, 1, 2, 4, 8, 8, 8]


def test_a_host_that_says_why_it_cannot_start_is_not_started_at_once() -> None:
    restarts = Restarts(0)
    assert restarts.wait_ns(100 * S, 0) == 0
    restarts.started(101 * S, 0, failed=True)
    assert restarts.wait_ns(101 * S, 0) == S // 2


def test_the_time_that_a_host_lives_counts() -> None:
    assert pauses_s(Restarts(0), 13, 3 * S // 4) == [0] * 11 + [0.25, 1.25]


def test_a_host_that_was_of_use_is_started_at_once() -> None:
    assert not any(pauses_s(Restarts(0), 20, S // 100, tasks_each=1))
    assert not any(pauses_s(Restarts(0), 20, 21 * S))


def test_use_makes_up_for_starts_in_vain() -> None:
    restarts = Restarts(0)
    pauses_s(restarts, 14, 0)
    assert restarts.in_vain == 14
    assert restarts.wait_ns(1010 * S, 1) == 0
    assert restarts.in_vain == 0
