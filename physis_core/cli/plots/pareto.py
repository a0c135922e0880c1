"""Period against response, one line for each number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from physis_core.cli.plots.canvas import COLOURS, canvas


def draw_pareto(front: Sequence[dict[str, Any]], path: Path) -> None:
    """Down and to the left is better; more devices move a line there."""
    with canvas(path, 8, 5.5) as axes:
        for index, devices in enumerate(sorted({point['devices'] for point in front})):
            points = [point for point in front if point['devices'] == devices]
            axes.plot([point['period_ms'] for point in points],
                      [point['response_ms'] for point in points], 'o-',
                      color=COLOURS[index % len(COLOURS)], label=f'{devices} device(s)')
            for point in points:
                axes.annotate(point['mode'], (point['period_ms'], point['response_ms']),
                              fontsize='xx-small', xytext=(4, 3), textcoords='offset points')
        axes.set_xscale('log')
        axes.set_yscale('log')
        axes.set_xlabel('period [ms]')
        axes.set_ylabel('response [ms]')
        axes.legend(fontsize='small')
