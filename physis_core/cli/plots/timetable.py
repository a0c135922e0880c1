"""The timetable of a plan: devices over time, coloured by step, one chunk's way highlighted."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from physis_core.cli.plots.canvas import COLOURS, canvas
from physis_core.planning.single import Candidate

_LEAST_PERIODS = 2
_MOST_BARS = 6000


def draw_timetable(candidate: Candidate, path: Path) -> None:
    """Draw from a chunk's entrance to its output; a batch is a bar with one strip for each step."""
    plan, table = candidate.plan, candidate.table
    periods = max(_LEAST_PERIODS, -(-table.response_us // table.period_us))
    periods = max(_LEAST_PERIODS, min(periods, _MOST_BARS // len(table.slots)))
    with canvas(path, 12, 1.8 + 0.35 * min(plan.devices, 40)) as axes:
        for slot in table.slots:
            for period in range(-1, periods):
                _draw_batch(axes, slot.batch.device, slot.batch.steps,
                            (slot.start_us + period * table.period_us) / 1e3,
                            slot.length_us / 1e3)
        _draw_way(axes, candidate)
        axes.set_xlim(0, periods * table.period_us / 1e3)
        axes.set_ylim(plan.devices - 0.4, -0.6)
        axes.set_yticks(range(0, plan.devices, max(1, plan.devices // 20)))
        axes.set_xlabel('time [ms]')
        axes.set_ylabel('device')
        axes.set_title(f'{plan.mode}: a chunk every {table.period_us / 1e3:g} ms, '
                       f'each answers after {table.response_us / 1e3:g} ms')
        axes.legend(handles=[Patch(color=_colour(step), label=f'step {step}')
                             for step in range(plan.graph.passes)]
                    + [Patch(facecolor='none', edgecolor='black', label='one chunk')],
                    loc='upper right', ncols=plan.graph.passes + 1, fontsize='small')


def _draw_batch(axes: Axes, device: int, steps: tuple[int, ...], start_ms: float,
                length_ms: float) -> None:
    height = 0.8 / len(steps)
    for index, step in enumerate(steps):
        axes.barh(device - 0.4 + (index + 0.5) * height, length_ms, height, start_ms,
                  color=_colour(step), edgecolor='white', linewidth=0.3)


def _draw_way(axes: Axes, candidate: Candidate) -> None:
    """Outline the stages of the chunk that enters at time 0."""
    plan, table = candidate.plan, candidate.table
    batch_of = {(step, slot.batch.block): slot for slot in table.slots for step in slot.batch.steps}
    for stage, start_us in enumerate(table.start_us):
        step, block = plan.graph.step_block(stage)
        slot = batch_of[(step, block)]
        height = 0.8 / len(slot.batch.steps)
        row = slot.batch.steps.index(step)
        axes.barh(slot.batch.device - 0.4 + (row + 0.5) * height, slot.length_us / 1e3, height,
                  start_us / 1e3, fill=False, edgecolor='black', linewidth=0.9)


def _colour(step: int) -> str:
    return COLOURS[step % len(COLOURS)]
