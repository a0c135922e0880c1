"""Stages, KV modes and dependencies: what must happen before what.

A chunk is denoised in D steps through L transformer blocks.  One block at one step is a *stage*,
``s = step * L + block``; the work of one stage on one chunk is a *task* ``(chunk, step, block)``.
Besides the task before it, a task needs the keys and values (KV) of earlier chunks.  Which ones is
a property of the model, its :class:`KVMode`; everything else here follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from physis_core.errors import InputError

_MOST = 10_000


class KVMode(str, Enum):
    """Which history a task reads."""

    SAME_STEP = 'same_step'
    """KV of earlier chunks at the task's own step: one stream can fill a whole pipeline."""

    CLEANER_NEIGHBOUR = 'cleaner_neighbour'
    """KV of earlier chunks one step further on (the last step reads itself)."""

    CLEAN = 'clean'
    """KV of earlier chunks from an extra pass at noise 0, made after the last denoising step."""


class Task(NamedTuple):
    """The work of one stage on one chunk; ``step == D`` is the clean pass of ``CLEAN`` models."""

    chunk: int
    step: int
    block: int


@dataclass(frozen=True)
class StageGraph:
    """The stages of one model and the dependencies between its tasks.

    Attributes:
        steps: D, the number of denoising steps; step 0 is the noisiest.
        blocks: L, the number of transformer blocks.
        kv_mode: which history a task reads.
        window_chunks: how many of the latest earlier chunks a task attends to (0: none).
        sink_chunks: how many of the first chunks of an epoch stay visible for ever.
    """

    steps: int
    blocks: int
    kv_mode: KVMode = KVMode.SAME_STEP
    window_chunks: int = 0
    sink_chunks: int = 0

    def __post_init__(self) -> None:
        for name, low in (('steps', 1), ('blocks', 1), ('window_chunks', 0), ('sink_chunks', 0)):
            value = getattr(self, name)
            if value < low:
                raise InputError(f'{name} is {value}, the least is {low}; give a larger {name}')
            if not (isinstance(value, int) and value <= _MOST):
                raise InputError(f'{name} is {value}; it is a whole number of at most {_MOST}')
        if self.sink_chunks and not self.window_chunks:
            raise InputError(
                f'sink_chunks is {self.sink_chunks} with window_chunks 0: sinks need a window; '
                'set window_chunks >= 1 or sink_chunks = 0')
        try:
            object.__setattr__(self, 'kv_mode', KVMode(self.kv_mode))
        except ValueError as error:
            raise InputError(f'kv_mode is {self.kv_mode!r}; choose one of '
                             f'{", ".join(mode.value for mode in KVMode)}') from error

    # -- stages --------------------------------------------------------------------------------

    @property
    def passes(self) -> int:
        """Times a chunk goes through the blocks: D, and one more for the clean pass."""
        return self.steps + (1 if self.kv_mode is KVMode.CLEAN else 0)

    @property
    def stages(self) -> int:
        """S: D*L denoising stages, plus the L stages of the clean pass where there is one."""
        return self.passes * self.blocks

    @property
    def output_stage(self) -> int:
        """The stage after which a chunk's output is complete (a clean pass comes after it)."""
        return self.steps * self.blocks - 1

    def stage(self, step: int, block: int) -> int:
        """The stage index of ``(step, block)``."""
        return step * self.blocks + block

    def step_block(self, stage: int) -> tuple[int, int]:
        """The ``(step, block)`` of a stage index."""
        if not 0 <= stage < self.stages:
            raise InputError(f'stage {stage} does not exist; stages go from 0 to {self.stages - 1}')
        return divmod(stage, self.blocks)

    # -- history -------------------------------------------------------------------------------

    def kv_source_step(self, step: int) -> int:
        """The step whose KV a task at ``step`` reads, for earlier chunks."""
        if self.kv_mode is KVMode.SAME_STEP:
            return step
        if self.kv_mode is KVMode.CLEANER_NEIGHBOUR:
            return min(step + 1, self.steps - 1)
        return self.steps

    def kv_reader_steps(self, step: int) -> tuple[int, ...]:
        """The steps that read the KV written at ``step``; empty where nobody does."""
        if not self.window_chunks:
            return ()
        return tuple(d for d in range(self.passes) if self.kv_source_step(d) == step)

    @property
    def history_slots(self) -> int:
        """Places for earlier chunks' KV: sinks first, then the ring of the window."""
        return self.sink_chunks + self.window_chunks

    def history_slot(self, chunk: int) -> int:
        """The place that holds this chunk's KV once it is written."""
        if chunk < self.sink_chunks:
            return chunk
        return self.sink_chunks + (chunk - self.sink_chunks) % self.window_chunks

    def history(self, chunk: int) -> list[int]:
        """The earlier chunks that ``chunk`` attends to, *in slot order*.

        Slot order is the order of the KV in memory.  It is part of the definition of the result,
        because floating-point sums depend on it: whoever attends in this order gets the same bits.
        """
        filled = min(chunk, self.history_slots)
        chunks = [0] * filled
        for earlier in (*range(min(chunk, self.sink_chunks)),
                        *range(max(self.sink_chunks, chunk - self.window_chunks), chunk)):
            chunks[self.history_slot(earlier)] = earlier
        return chunks

    def positions(self, chunk: int) -> list[int]:
        """Positions (in chunks) of ``chunk`` itself, then of its history in slot order.

        Positions are relative to the window, so they never exceed ``history_slots`` however long
        a session lasts; sinks sit directly before the window.
        """
        own = min(chunk, self.history_slots)
        return [own] + [earlier if earlier < self.sink_chunks else own - (chunk - earlier)
                        for earlier in self.history(chunk)]

    # -- dependencies --------------------------------------------------------------------------

    def next_task(self, task: Task) -> Task | None:
        """The task of the same chunk that follows, or None after the last one."""
        following = self.stage(task.step, task.block) + 1
        if following == self.stages:
            return None
        return Task(task.chunk, *self.step_block(following))

    def dependencies(self, task: Task) -> Iterator[Task]:
        """The tasks that must have ended before ``task`` may start."""
        stage = self.stage(task.step, task.block)
        if stage:
            yield Task(task.chunk, *self.step_block(stage - 1))
        if not task.chunk:
            return
        yield Task(task.chunk - 1, task.step, task.block)
        source = self.kv_source_step(task.step)
        if self.window_chunks and source != task.step:
            yield Task(task.chunk - 1, source, task.block)
