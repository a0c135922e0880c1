"""A periodic schedule of all streams on a pool: modulo list scheduling in whole microseconds.

Streams of one model go in *cohorts* of at most Bmax: at each stage, the members that are on one
device share a batch.  Cohorts enter one after the other, evenly over the period, and each is led
through its stages by the first gap that every device has.  Where gaps run out, near full load,
every device runs its batches back to back instead, in the same order of cohorts and steps: then a
step still passes through the devices without waiting, but the next step waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from physis_core.errors import InputError
from physis_core.planning.calendar import Calendar
from physis_core.planning.pool import Pool, StreamClass


@dataclass(frozen=True)
class PoolBatch:
    """Members of one block and step that run together, every period.

    Attributes:
        device: where.
        block: of their model.
        step: of all members.
        streams: their names.
        start_us: in the first period that it runs, counted from the schedule's origin.
        length_us: p99 time of the batch.
    """

    device: int
    block: int
    step: int
    streams: tuple[str, ...]
    start_us: int
    length_us: int


@dataclass(frozen=True)
class PoolSchedule:
    """What every device does in one period, and what follows for each stream.

    Attributes:
        period_us: T.
        batches: of one period.
        entry_us: when each stream's chunk enters, in the period.
        response_us: from there to its output.
    """

    period_us: int
    batches: tuple[PoolBatch, ...]
    entry_us: dict[str, int]
    response_us: dict[str, int]


def pool_schedule(pool: Pool) -> PoolSchedule | None:
    """A schedule for every stream of a pool; None: the batches of cohorts exceed the period.

    Hops are not in it: they overlap with other streams' work and are microseconds.

    Raises:
        InputError: the streams have different periods; deadlines order those at run time.
    """
    periods = sorted({tenant.stream_class.period_us for tenant in pool.tenants.values()})
    if len(periods) != 1:
        raise InputError(f'the pool has streams of {len(periods)} periods; a periodic schedule '
                         'needs one')
    return _scheduled(pool, periods[0], dense=False) or _scheduled(pool, periods[0], dense=True)


def _scheduled(pool: Pool, period_us: int, dense: bool) -> PoolSchedule | None:
    calendars = [Calendar(period_us) for _ in range(pool.devices)]
    places = [calendar.append if dense else calendar.reserve for calendar in calendars]
    cohorts = [(tenant.stream_class, cohort) for _, tenant in sorted(pool.tenants.items())
               for cohort in _cohorts(pool, tenant.stream_class)]
    batches: list[PoolBatch] = []
    entry_us: dict[str, int] = {}
    response_us: dict[str, int] = {}
    for number, (stream_class, cohort) in enumerate(cohorts):
        phase_us = number * period_us // len(cohorts)
        made = _lead(pool, stream_class, cohort, phase_us, places)
        if made is None:
            return None
        batches += made
        output = stream_class.profile.graph.output_stage
        for batch in made:
            stage = stream_class.profile.graph.stage(batch.step, batch.block)
            for stream in batch.streams:
                if stage == 0:
                    entry_us[stream] = batch.start_us
                if stage == output:
                    response_us[stream] = batch.start_us + batch.length_us - entry_us[stream]
    return PoolSchedule(period_us, tuple(batches), entry_us, response_us)


def _cohorts(pool: Pool, stream_class: StreamClass) -> Iterator[list[str]]:
    """The streams of a class in groups of at most Bmax, those placed alike together."""
    names = sorted((name for name, key in pool.class_of.items() if key == stream_class.key),
                   key=lambda name: pool.placed[name])
    size = stream_class.profile.max_batch
    for first in range(0, len(names), size):
        yield names[first:first + size]


def _lead(pool: Pool, stream_class: StreamClass, cohort: Sequence[str], phase_us: int,
          places: Sequence[Callable[[int, int], int | None]]) -> list[PoolBatch] | None:
    """Take a cohort through all stages."""
    graph, profile = stream_class.profile.graph, stream_class.profile
    ready_us = dict.fromkeys(cohort, phase_us)
    made: list[PoolBatch] = []
    for stage in range(graph.stages):
        step, block = graph.step_block(stage)
        here: dict[int, list[str]] = {}
        for stream in cohort:
            here.setdefault(pool.placed[stream][stage], []).append(stream)
        for device, streams in sorted(here.items()):
            length_us = profile.p99_us(block, len(streams))
            start_us = places[device](max(ready_us[stream] for stream in streams), length_us)
            if start_us is None:
                return None
            made.append(PoolBatch(device, block, step, tuple(streams), start_us, length_us))
            ready_us.update(dict.fromkeys(streams, start_us + length_us))
    return made
