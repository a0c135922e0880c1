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
        yields: its stream gives way: served after all others unless those are ahead of their
            plan, in small batches of its own kind.
        planned_ns: until when its end may be put off for others (:func:`planned_end_ns`).
        latest_end_ns: the latest end of this task with which the chunk can still be on time.
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
    planned_ns: int = 0
    latest_end_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.latest_end_ns = self.deadline_ns - self.remaining_ns

    def move_on(self, task: Task, remaining_ns: int, arrived_ns: int, yields: bool) -> None:
        """Become the chunk's next task, on the same device; only once this one has ended."""
        self.planned_ns += self.remaining_ns - remaining_ns
        self.task, self.remaining_ns, self.arrived_ns = task, remaining_ns, arrived_ns
        self.latest_end_ns = self.deadline_ns - remaining_ns
        self.yields = yields


def planned_end_ns(release_ns: int, response_ns: int, remaining_ns: int) -> int:
    """When a task ends that is as far behind its plan as it may be for the sake of others.

    A quarter of the planned response: with less, devices stay busy with small batches and work
    that gives way starves; with more, little is left for jitter.
    """
    return release_ns + response_ns + response_ns // 4 - remaining_ns


@dataclass(slots=True)
class _Stage:
    """Progress of one stream at one stage of a device."""

    source: _Stage | None  # whose KV its tasks read, where that is another stage's
    readers: tuple[tuple[int, int], ...]  # other stages that read its KV
    arrived: int = -1
    done: int = -1
    kv: int = -1  # the last chunk whose KV came from another device
    waiting: dict[int, Work] = field(default_factory=dict)

    def may_start(self, chunk: int) -> bool:
        """Whether the chunk before has ended here and the KV it reads is there."""
        source = self.source
        return self.done == chunk - 1 and (
            source is None or max(source.done, source.kv) >= chunk - 1)


class _Progress:
    """How far one stream has come at each stage, made when first asked for."""

    def __init__(self, epoch: int, graph: StageGraph) -> None:
        self.epoch = epoch
        self.stages: dict[tuple[int, int], _Stage] = {}
        self._graph = graph

    def stage(self, step: int, block: int) -> _Stage:
        return self.stages.get((step, block)) or self._make(step, block)

    def _make(self, step: int, block: int) -> _Stage:
        graph = self._graph
        from_step = graph.kv_source_step(step) if graph.window_chunks else step
        stage = self.stages[step, block] = _Stage(
            None if from_step == step else self.stage(from_step, block),
            tuple((reader, block) for reader in graph.kv_reader_steps(step) if reader != step))
        return stage


class ReadyQueue:
    """The tasks of a device, split into those that may start and those that must wait.

    Bounded by the chunks in flight that the engine's source admits.
    """

    def __init__(self) -> None:
        self.ready: list[Work] = []
        self._streams: dict[int, _Progress] = {}

    def open(self, stream: int, epoch: int, graph: StageGraph) -> None:
        """Start an epoch of a stream, forgetting everything of the one before."""
        self.close(stream)
        self._streams[stream] = _Progress(epoch, graph)

    def close(self, stream: int) -> list[Work]:
        """Forget a stream; returns the work that was dropped."""
        dropped = [work for work in self.ready if work.stream == stream]
        self.ready = [work for work in self.ready if work.stream != stream]
        progress = self._streams.pop(stream, None)
        for stage in progress.stages.values() if progress is not None else ():
            dropped.extend(stage.waiting.values())
        return dropped

    def epoch(self, stream: int) -> int | None:
        """The current epoch of a stream here, None if it is not open."""
        progress = self._streams.get(stream)
        return None if progress is None else progress.epoch

    @property
    def waiting(self) -> int:
        """Tasks that have arrived but may not start yet."""
        return sum(len(stage.waiting) for progress in self._streams.values()
                   for stage in progress.stages.values())

    def arrive(self, work: Work) -> None:
        """Accept a task whose predecessor in its own chunk has ended.

        Raises:
            OrderViolation: it is not the next chunk at its stage.
        """
        chunk, step, block = work.task
        stage = self._streams[work.stream].stage(step, block)
        if chunk != stage.arrived + 1:
            raise _out_of_order(work.stream, work.task, 'arrived', stage.arrived)
        stage.arrived = chunk
        if stage.may_start(chunk):
            work.ready_ns = work.arrived_ns
            self.ready.append(work)
        else:
            stage.waiting[chunk] = work

    def kv_arrived(self, stream: int, task: Task, at_ns: int = 0) -> None:
        """Note KV that another device wrote for this one's tasks and that came ``at_ns``.

        Raises:
            OrderViolation: it is not the next chunk's.
        """
        chunk, step, block = task
        progress = self._streams[stream]
        stage = progress.stage(step, block)
        if chunk != stage.kv + 1:
            raise _out_of_order(stream, task, 'was written', stage.kv)
        stage.kv = chunk
        for reader in stage.readers:
            self._promote(progress.stages.get(reader), at_ns)

    def start(self, members: Collection[Work]) -> None:
        """Take tasks out of ``ready``: they run now."""
        if len(members) == len(self.ready):
            self.ready = []
            return
        taken = {id(work) for work in members}
        self.ready = [work for work in self.ready if id(work) not in taken]

    def end(self, work: Work) -> None:
        """Note that a task has ended; whatever waited for it becomes ready.

        Raises:
            OrderViolation: an earlier chunk has not ended at this stage.
        """
        chunk, step, block = work.task
        progress = self._streams[work.stream]
        stage = progress.stage(step, block)
        if chunk != stage.done + 1:
            raise _out_of_order(work.stream, work.task, 'ended', stage.done)
        stage.done = chunk
        if stage.waiting:
            self._promote(stage)
        for reader in stage.readers:
            self._promote(progress.stages.get(reader))

    def _promote(self, stage: _Stage | None, at_ns: int = 0) -> None:
        """Let the next task of a stage start, if it is here and has waited for nothing else."""
        if stage is None:
            return
        chunk = stage.done + 1
        if chunk in stage.waiting and stage.may_start(chunk):
            work = stage.waiting.pop(chunk)
            work.ready_ns = max(work.arrived_ns, at_ns)
            self.ready.append(work)


def _out_of_order(stream: int, task: Task, what: str, last: int) -> OrderViolation:
    return OrderViolation(
        f'stream {stream}: chunk {task.chunk} {what} at step {task.step} block {task.block} after '
        f'chunk {last}; chunks come in order, so a task was lost, repeated or overtaken upstream')


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

    Work that gives way goes first only while nobody else falls behind plan by that.  If it never
    did, it would starve on a device that is half loaded, but always busy with small batches.

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
        until_ns: int | None = None
        for heads in self._tiers(now_ns, ready):
            while heads:
                members = self._grow(now_ns, self._most_urgent(heads), ready)
                wait_ns = self._wait_limit_ns(members)
                if now_ns >= wait_ns:
                    return Batch(tuple(members))
                considered = set(map(id, members))
                heads = [work for work in heads if id(work) not in considered]
                until_ns = wait_ns if until_ns is None else min(until_ns, wait_ns)
        return WaitUntil(until_ns)

    def _tiers(self, now_ns: int, ready: Collection[Work]) -> list[list[Work]]:
        """All work, or that which gives way in front, if nobody else falls behind by that."""
        yielding = [work for work in ready if work.yields]
        if not yielding:
            return [list(ready)]
        first = self._most_urgent(yielding)
        end_ns = now_ns + self._predict(first.task.block, self._most(first))
        others = [work for work in ready if not work.yields]
        if any(end_ns + self._predict(work.task.block, self._rule.max_batch) > work.planned_ns
               for work in others):
            return [others, yielding]
        return [yielding, others]

    def _most(self, head: Work) -> int:
        """Members that a batch may have."""
        return 1 + self._rule.max_batch // 4 if head.yields else self._rule.max_batch

    def _most_urgent(self, heads: Sequence[Work]) -> Work:
        """The first of works that all give way, or none."""
        first_ns = min([work.latest_end_ns for work in heads])
        first = [work for work in heads if work.latest_end_ns == first_ns]
        return first[0] if len(first) == 1 else min(first, key=self._urgency)

    def _urgency(self, work: Work) -> tuple[int, int, int]:
        _, step, block = work.task
        return work.latest_end_ns, self._rank.get((step, block), -step), -block

    def _grow(self, now_ns: int, head: Work, ready: Collection[Work]) -> list[Work]:
        """The head, and what may join it without making the tightest member late."""
        block = head.task.block
        company = self._company(head, ready)
        most = self._most(head)
        limit_ns = min([work.latest_end_ns for work in company]) - now_ns
        late_anyway = self._predict(block, 1) > head.latest_end_ns - now_ns
        if len(company) <= most and (
                late_anyway or self._predict(block, len(company)) <= limit_ns):
            return company
        company.sort(key=self._urgency)
        members = [head]
        limit_ns = head.latest_end_ns - now_ns
        for work in company:
            if len(members) == most:
                break
            if work is head:
                continue
            limit_ns = min(limit_ns, work.latest_end_ns - now_ns)
            if self._predict(block, len(members) + 1) > limit_ns and not late_anyway:
                break
            members.append(work)
        return members

    def _company(self, head: Work, ready: Collection[Work]) -> list[Work]:
        """Those that may share a call with the head, and the head."""
        _, step, block = head.task
        steps, streams = self._rule.across_steps, self._rule.across_streams
        return [work for work in ready
                if work.task.block == block and work.yields == head.yields
                and (steps or work.task.step == step)
                and (streams or work.stream == head.stream)]

    def _wait_limit_ns(self, members: Sequence[Work]) -> int:
        """Until when these may wait for company; 0: they do not."""
        if not self._rule.wait_us or len(members) == self._rule.max_batch:
            return 0
        if members[0].task.block or any(work.task.step for work in members):
            return 0
        patience_ns = min(work.arrived_ns for work in members) + self._rule.wait_us * 1000
        tightest_ns = min(work.latest_end_ns for work in members)
        return min(patience_ns, tightest_ns - self._predict(0, len(members) + 1))
