"""What a device runs next.  The engine and the simulator share this code.

:class:`ReadyQueue` knows which tasks may start: it enforces the order of chunks at every stage, so
that a fault upstream ends a stream with a message and never turns into a wrong number.
:class:`SlackDispatcher` chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from physis_core.errors import OrderViolation
from physis_core.graph import StageGraph, Task
from physis_core.planning.plan import BatchRule

Predict = Callable[[int, int], int]
"""Predicted time of a stage [ns] from (block, batch)."""


@dataclass(slots=True)
class Work:
    """A task of one stream that has arrived at a device.

    Attributes:
        stream: slot of the stream in the engine.
        epoch: counts the resets of that stream.
        task: chunk, step and block.
        deadline_ns: when the chunk's output is due (steady clock).
        remaining_ns: predicted time from the end of this task to the chunk's output.
        arrived_ns: when it arrived here.
        ready_ns: when the history it waited for was here too.
        payload: what the executor needs besides; dispatch does not look at it.
        yields: its stream gives way: served after all others, in small batches of its own kind.
    """

    stream: int
    epoch: int
    task: Task
    deadline_ns: int
    remaining_ns: int = 0
    arrived_ns: int = 0
    ready_ns: int = field(default=0, kw_only=True)
    payload: Any = None
    yields: bool = False

    def latest_end_ns(self) -> int:
        """The latest end of this task with which the chunk can still be on time."""
        return self.deadline_ns - self.remaining_ns


@dataclass(slots=True)
class _Stage:
    """Progress of one stream at one stage of a device."""

    arrived: int = -1
    done: int = -1
    waiting: dict[int, Work] = field(default_factory=dict)


class ReadyQueue:
    """The tasks of a device, split into those that may start and those that must wait.

    Bounded by the chunks in flight that the engine's source admits.
    """

    def __init__(self) -> None:
        self.ready: list[Work] = []
        self._graphs: dict[int, StageGraph] = {}
        self._readers: dict[int, list[list[int]]] = {}  # other steps that read a step's KV
        self._epochs: dict[int, int] = {}
        self._stages: dict[tuple[int, int, int], _Stage] = {}
        self._kv: dict[tuple[int, int, int], int] = {}

    def open(self, stream: int, epoch: int, graph: StageGraph) -> None:
        """Start an epoch of a stream, forgetting everything of the one before."""
        self.close(stream)
        self._graphs[stream] = graph
        self._readers[stream] = [
            [reader for reader in graph.kv_reader_steps(step) if reader != step]
            for step in range(graph.passes)]
        self._epochs[stream] = epoch

    def close(self, stream: int) -> list[Work]:
        """Forget a stream; returns the work that was dropped."""
        dropped = [work for work in self.ready if work.stream == stream]
        self.ready = [work for work in self.ready if work.stream != stream]
        for key in [key for key in self._stages if key[0] == stream]:
            dropped.extend(self._stages.pop(key).waiting.values())
        for key in [key for key in self._kv if key[0] == stream]:
            del self._kv[key]
        self._graphs.pop(stream, None)
        self._readers.pop(stream, None)
        self._epochs.pop(stream, None)
        return dropped

    def epoch(self, stream: int) -> int | None:
        """The current epoch of a stream here, None if it is not open."""
        return self._epochs.get(stream)

    @property
    def waiting(self) -> int:
        """Tasks that have arrived but may not start yet."""
        return sum(len(stage.waiting) for stage in self._stages.values())

    def arrive(self, work: Work) -> None:
        """Accept a task whose predecessor in its own chunk has ended.

        Raises:
            OrderViolation: it is not the next chunk at its stage.
        """
        chunk, step, block = work.task
        stage = self._stage(work.stream, step, block)
        if chunk != stage.arrived + 1:
            raise OrderViolation(
                f'stream {work.stream} epoch {work.epoch}: chunk {chunk} arrived at step {step} '
                f'block {block} after chunk {stage.arrived}; chunks arrive in order, so a task '
                'was lost, repeated or overtaken upstream')
        stage.arrived = chunk
        stage.waiting[chunk] = work
        self._promote(work.stream, step, block)

    def kv_arrived(self, stream: int, chunk: int, step: int, block: int, at_ns: int = 0) -> None:
        """Note KV that another device wrote for this one's tasks and that came ``at_ns``.

        Raises:
            OrderViolation: it is not the next chunk's.
        """
        key = (stream, step, block)
        if chunk != self._kv.get(key, -1) + 1:
            raise OrderViolation(
                f'stream {stream}: KV of chunk {chunk} at step {step} block {block} came after '
                f'that of chunk {self._kv.get(key, -1)}')
        self._kv[key] = chunk
        self._promote_readers(stream, step, block, at_ns)

    def start(self, members: Collection[Work]) -> None:
        """Take tasks out of ``ready``: they run now."""
        taken = {id(work) for work in members}
        self.ready = [work for work in self.ready if id(work) not in taken]

    def end(self, work: Work) -> None:
        """Note that a task has ended; whatever waited for it becomes ready.

        Raises:
            OrderViolation: an earlier chunk has not ended at this stage.
        """
        chunk, step, block = work.task
        stage = self._stage(work.stream, step, block)
        if chunk != stage.done + 1:
            raise OrderViolation(
                f'stream {work.stream}: chunk {chunk} ended at step {step} block {block}, but the '
                f'last one to end there was chunk {stage.done}')
        stage.done = chunk
        self._promote(work.stream, step, block)
        self._promote_readers(work.stream, step, block)

    def _stage(self, stream: int, step: int, block: int) -> _Stage:
        return self._stages.setdefault((stream, step, block), _Stage())

    def _promote_readers(self, stream: int, step: int, block: int, at_ns: int = 0) -> None:
        for reader in self._readers[stream][step]:
            self._promote(stream, reader, block, at_ns)

    def _promote(self, stream: int, step: int, block: int, at_ns: int = 0) -> None:
        stage = self._stages.get((stream, step, block))
        if stage is None:
            return
        work = stage.waiting.get(stage.done + 1)
        if work is not None and self._history_is_here(work):
            del stage.waiting[stage.done + 1]
            work.ready_ns = max(work.arrived_ns, at_ns)
            self.ready.append(work)

    def _history_is_here(self, work: Work) -> bool:
        chunk, step, block = work.task
        graph = self._graphs[work.stream]
        source = graph.kv_source_step(step)
        if not chunk or not graph.window_chunks or source == step:
            return True
        written = self._stages.get((work.stream, source, block))
        here = written.done if written is not None else -1
        return max(here, self._kv.get((work.stream, source, block), -1)) >= chunk - 1


@dataclass(frozen=True)
class Batch:
    """Tasks of one block to run in one call."""

    members: tuple[Work, ...]


@dataclass(frozen=True)
class WaitUntil:
    """Run nothing before ``ns`` (steady clock) unless something arrives; None: until it does."""

    ns: int | None = None


class Dispatcher(Protocol):
    """The choice of what runs next."""

    def next_batch(self, now_ns: int, ready: Collection[Work]) -> Batch | WaitUntil:
        """What to run now, or how long to wait."""
        ...


class SlackDispatcher:
    """Least slack first; a batch grows while every member stays on time.

    Slack is the latest end with which a chunk can still meet its deadline, minus now, minus the
    predicted time of the stage.  Among equals, the stage that the plan's order puts first goes
    first (by default the one furthest along, so that chunks leave before others enter).  A stream
    without deadlines gives its release time as deadline: oldest chunk first, largest batch.

    A chunk that has just entered (step 0, block 0) may wait for company; one that is under way
    never does, because its company would be at another block by then.
    """

    def __init__(self, rule: BatchRule, predict: Predict,
                 order: Sequence[tuple[int, int]] = ()) -> None:
        """Order: the device's stages as (step, block), first served first."""
        self._rule = rule
        self._predict = predict
        self._rank = {stage: rank for rank, stage in enumerate(order)}

    def next_batch(self, now_ns: int, ready: Collection[Work]) -> Batch | WaitUntil:
        """The most urgent task and those that may share its call."""
        if len(ready) == 1 and not self._rule.wait_us:
            return Batch(tuple(ready))
        ordered = sorted(ready, key=self._urgency)
        considered: set[int] = set()
        until_ns: int | None = None
        for head in ordered:
            if id(head) in considered:
                continue
            members = self._grow(now_ns, head, ordered)
            wait_ns = self._wait_limit_ns(members)
            if now_ns >= wait_ns:
                return Batch(tuple(members))
            considered.update(id(work) for work in members)
            until_ns = wait_ns if until_ns is None else min(until_ns, wait_ns)
        return WaitUntil(until_ns)

    def _urgency(self, work: Work) -> tuple[bool, int, int, int]:
        _, step, block = work.task
        return (work.yields, work.latest_end_ns(), self._rank.get((step, block), -step), -block)

    def _grow(self, now_ns: int, head: Work, ordered: Sequence[Work]) -> list[Work]:
        """The head, and what may join it without making the tightest member late."""
        block = head.task.block
        members = [head]
        tightest_ns = head.latest_end_ns()
        most = self._rule.max_batch if not head.yields else 1 + self._rule.max_batch // 4
        late_anyway = now_ns + self._predict(block, 1) > tightest_ns
        for work in ordered:
            if len(members) == most:
                break
            if work is head or not self._may_join(head, work):
                continue
            latest_ns = min(tightest_ns, work.latest_end_ns())
            if now_ns + self._predict(block, len(members) + 1) > latest_ns and not late_anyway:
                break
            members.append(work)
            tightest_ns = latest_ns
        return members

    def _may_join(self, head: Work, work: Work) -> bool:
        return (work.task.block == head.task.block and work.yields == head.yields
                and (self._rule.across_steps or work.task.step == head.task.step)
                and (self._rule.across_streams or work.stream == head.stream))

    def _wait_limit_ns(self, members: Sequence[Work]) -> int:
        """Until when these may wait for company; 0: they do not."""
        entering = all(work.task.step == 0 and work.task.block == 0 for work in members)
        if not self._rule.wait_us or not entering or len(members) == self._rule.max_batch:
            return 0
        patience_ns = min(work.arrived_ns for work in members) + self._rule.wait_us * 1000
        tightest_ns = min(work.latest_end_ns() for work in members)
        return min(patience_ns, tightest_ns - self._predict(0, len(members) + 1))
