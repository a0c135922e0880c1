"""Ways to choose what runs next, by name.

``deadline`` is the engine's own (:class:`~physis_core.runtime.dispatch.SlackDispatcher`); the
others are what it is compared with, in the engine and in the simulator alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from physis_core.errors import InputError
from physis_core.planning.plan import BatchRule
from physis_core.runtime.dispatch import (
    Batch,
    Dispatcher,
    Predict,
    SlackDispatcher,
    WaitUntil,
    Work,
)

MakeDispatcher = Callable[[BatchRule, Predict, Sequence[tuple[int, int]]], Dispatcher]
"""Makes the dispatcher of a device from its batch rule, stage times and order of stages."""


class FifoDispatcher:
    """One task at a time, in the order in which they arrived."""

    def __init__(self, rule: BatchRule, predict: Predict,
                 order: Sequence[tuple[int, int]] = ()) -> None:
        """Neither times nor order matter."""

    def next_batch(self, now_ns: int, ready: Collection[Work]) -> Batch | WaitUntil:
        """The task that has waited longest."""
        if not ready:
            return WaitUntil()
        return Batch((min(ready, key=lambda work: work.arrived_ns),))


class EdfDispatcher:
    """One task at a time, earliest deadline first."""

    def __init__(self, rule: BatchRule, predict: Predict,
                 order: Sequence[tuple[int, int]] = ()) -> None:
        """Neither times nor order matter."""

    def next_batch(self, now_ns: int, ready: Collection[Work]) -> Batch | WaitUntil:
        """The task whose chunk is due first."""
        if not ready:
            return WaitUntil()
        return Batch((min(ready, key=lambda work: (work.deadline_ns, work.arrived_ns)),))


class GreedyDispatcher:
    """The largest batch there is, whoever it makes late."""

    def __init__(self, rule: BatchRule, predict: Predict,
                 order: Sequence[tuple[int, int]] = ()) -> None:
        """Times do not matter."""
        self._rule = rule

    def next_batch(self, now_ns: int, ready: Collection[Work]) -> Batch | WaitUntil:
        """Of all possible batches the largest, the one that has waited longest among equals."""
        groups: dict[tuple[int, ...], list[Work]] = {}
        for work in sorted(ready, key=lambda work: work.arrived_ns):
            groups.setdefault(self._group(work), []).append(work)
        if not groups:
            return WaitUntil()
        largest = max(groups.values(), key=lambda works: (
            min(len(works), self._rule.max_batch), -works[0].arrived_ns))
        return Batch(tuple(largest[:self._rule.max_batch]))

    def _group(self, work: Work) -> tuple[int, ...]:
        """What members of one batch have in common."""
        return (work.task.block,
                -1 if self._rule.across_steps else work.task.step,
                -1 if self._rule.across_streams else work.stream)


POLICIES: dict[str, MakeDispatcher] = {
    'deadline': SlackDispatcher,
    'fifo': FifoDispatcher,
    'edf': EdfDispatcher,
    'always_batch': GreedyDispatcher,
}


def policy(name: str) -> MakeDispatcher:
    """The policy of that name.

    Raises:
        InputError: there is none.
    """
    if name not in POLICIES:
        raise InputError(f'policy `{name}` is not known; choose one of {", ".join(POLICIES)}')
    return POLICIES[name]
