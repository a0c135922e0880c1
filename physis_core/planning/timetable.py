"""A periodic timetable of one stream: modulo list scheduling in slots of one microsecond.

Every period a device runs each of its batches once; chunk c runs stage s at ``start[s] + c T``.
Stages of one batch start together, so their starts agree modulo T.  Every assignment whose heaviest
load fits in T has such a timetable (its only loops are self-loops of distance 1); the list order,
along the way of a chunk, keeps the response short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from physis_core.errors import PlanError
from physis_core.graph import StageGraph
from physis_core.planning.calendar import Calendar
from physis_core.planning.loads import StageTime, StepBatch, device_loads_us

_STRETCH = 1.005

HopTime = Callable[[int, int], int]
"""Time of a hidden state [us] from (sender, receiver)."""


@dataclass(frozen=True)
class Slot:
    """A batch in the timetable: starts at ``start_us`` modulo the period, lasts ``length_us``."""

    batch: StepBatch
    start_us: int
    length_us: int


@dataclass(frozen=True)
class Timetable:
    """When each batch of a period runs, and when a chunk reaches each stage.

    Attributes:
        period_us: T.
        slots: every batch of the period.
        start_us: start of each stage, counted from the start of the chunk's first.
        response_us: from there to the chunk's output.
        round_us: time of one walk through all blocks and back to the first, waits included.
    """

    period_us: int
    slots: tuple[Slot, ...]
    start_us: tuple[int, ...]
    response_us: int
    round_us: int


def timetable(graph: StageGraph, batches: Sequence[StepBatch], stage_us: StageTime,
              hop_us: HopTime, period_us: int, dense: bool = False) -> Timetable:
    """The timetable with the shortest period from ``period_us`` on that can be found.

    ``dense``: a device runs its batches back to back in list order, which fits whenever its load
    does; otherwise each takes the first gap, which answers sooner but may need a longer period.

    Raises:
        PlanError: history would be read before it is written at any period, because steps that
            wait for each other share a batch.
    """
    loads = device_loads_us(batches, 1 + max(batch.device for batch in batches), stage_us)
    period_us = max(period_us, *loads)
    # One chunk at a time fits in this, whatever the placement; a longer period helps nobody.
    devices = {batch.device for batch in batches}
    longest_hop_us = max(hop_us(sender, receiver) for sender in devices for receiver in devices)
    enough_us = _STRETCH * max(period_us, 2 * graph.stages * longest_hop_us + sum(
        stage_us(batch.block, len(batch.steps)) * len(batch.steps) for batch in batches))
    while period_us <= enough_us:
        attempt = _Attempt(graph, batches, stage_us, hop_us, period_us, dense)
        table = attempt.build()
        if table is not None:
            needed_us = _history_period_us(table, graph, hop_us)
            if needed_us <= period_us:
                return table
            period_us = max(min(needed_us, int(enough_us)), period_us + 1)
        else:
            period_us = round(period_us * _STRETCH) + 1
    raise PlanError(
        f'no timetable up to a period of {period_us} us: with KV mode {graph.kv_mode.value} steps '
        'that wait for each other cannot share a batch; batch across streams only')


class _Attempt:
    """One pass of list scheduling at a fixed period."""

    def __init__(self, graph: StageGraph, batches: Sequence[StepBatch], stage_us: StageTime,
                 hop_us: HopTime, period_us: int, dense: bool) -> None:
        self._graph, self._hop_us, self._period_us = graph, hop_us, period_us
        self._dense = dense
        self._batches = batches
        self._batch_of = {(step, batch.block): batch for batch in batches for step in batch.steps}
        self.length_us = {batch: stage_us(batch.block, len(batch.steps)) for batch in batches}
        self._calendars: dict[int, Calendar] = {}
        self._slot_us: dict[StepBatch, int] = {}
        self._start_us: list[int] = []

    def build(self) -> Timetable | None:
        """The timetable, None where some batch finds no gap."""
        for section in _sections(self._batches, self._graph.passes):
            if not self._place_section(section):
                return None
            for step in section:
                self._walk(step)
        graph = self._graph
        last = self._batch_of[graph.step_block(graph.output_stage)]
        response_us = self._start_us[graph.output_stage] + self.length_us[last]
        end_of_round = self._batch_of[(0, graph.blocks - 1)]
        back_us = self._hop_us(end_of_round.device, self._batch_of[(0, 0)].device)
        return Timetable(
            self._period_us,
            tuple(Slot(batch, start % self._period_us, self.length_us[batch])
                  for batch, start in self._slot_us.items()),
            tuple(self._start_us), response_us,
            self._start_us[graph.blocks - 1] + self.length_us[end_of_round] + back_us)

    def _place_section(self, section: Sequence[int]) -> bool:
        """Give the batches of these steps their slots, block after block."""
        members = [batch for batch in self._batches if batch.steps[0] in section]
        ends: dict[int, tuple[int, int]] = {}  # step: (end, device) in the block before
        entry = self._previous_end(section[0])
        for batch in sorted(members, key=lambda batch: (batch.block, batch.steps)):
            ready = max((end + self._hop_us(device, batch.device) for end, device in
                         (ends.get(step, entry) for step in batch.steps)))
            start = self._gap(batch.device, ready, self.length_us[batch])
            if start is None:
                return False
            self._slot_us[batch] = start
            end = start + self.length_us[batch]
            ends.update(dict.fromkeys(batch.steps, (end, batch.device)))
        return True

    def _previous_end(self, step: int) -> tuple[int, int]:
        """When and where the step before ends; before the first step: now, where it begins."""
        if not step:
            return 0, self._batch_of[(0, 0)].device
        batch = self._batch_of[(step - 1, self._graph.blocks - 1)]
        return self._start_us[-1] + self.length_us[batch], batch.device

    def _walk(self, step: int) -> None:
        """Follow a chunk through one step: each stage at the first slot that comes."""
        end, where = self._previous_end(step)
        for block in range(self._graph.blocks):
            batch = self._batch_of[(step, block)]
            ready = end + self._hop_us(where, batch.device)
            start = ready + (self._slot_us[batch] - ready) % self._period_us
            self._start_us.append(start)
            end, where = start + self.length_us[batch], batch.device

    def _gap(self, device: int, ready_us: int, length_us: int) -> int | None:
        """The first start from ``ready_us`` on at which the device is free every period."""
        calendar = self._calendars.setdefault(device, Calendar(self._period_us))
        place = calendar.append if self._dense else calendar.reserve
        return place(ready_us, length_us)


def _sections(batches: Sequence[StepBatch], passes: int) -> list[list[int]]:
    """Runs of steps that batches tie together; a run walks through the blocks side by side."""
    joined = {step for batch in batches for low, high in [(batch.steps[0], batch.steps[-1])]
              for step in range(low, high)}
    sections: list[list[int]] = [[0]]
    for before, step in pairwise(range(passes)):
        if before in joined:
            sections[-1].append(step)
        else:
            sections.append([step])
    return sections


def _history_period_us(table: Timetable, graph: StageGraph, hop_us: HopTime) -> int:
    """The least period at which every task finds the KV it reads [us].

    KV that is read on another device travels there like a hidden state.
    """
    if not graph.window_chunks:
        return 0
    slot_of = {(step, slot.batch.block): slot for slot in table.slots for step in slot.batch.steps}
    needed = 0
    for stage, start in enumerate(table.start_us):
        step, block = graph.step_block(stage)
        source = graph.kv_source_step(step)
        if source != step:
            slot = slot_of[source, block]
            there_us = (table.start_us[graph.stage(source, block)] + slot.length_us
                        + hop_us(slot.batch.device, slot_of[step, block].batch.device))
            needed = max(needed, there_us - start)
    return needed
