"""How many streams each placement holds, by model, under the bound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from physis_core.cli.plots.canvas import COLOURS, canvas

_BARS = ('even', 'best_fit', 'best_fit_lds', 'wrap', 'portfolio')


def draw_capacity(rows: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """One group of bars for each model, its upper bound as a line above."""
    width = 0.8 / len(_BARS)
    with canvas(path, 2 + 1.8 * len(rows), 4.5) as axes:
        for index, name in enumerate(_BARS):
            places = [model + (index - (len(_BARS) - 1) / 2) * width for model in range(len(rows))]
            bars = axes.bar(places, [row[name] for row in rows.values()], width,
                            label=name.replace('_', ' '), color=COLOURS[index])
            axes.bar_label(bars, fontsize='x-small', padding=-10, color='white')
        for model, row in enumerate(rows.values()):
            axes.hlines(row['upper_bound'], model - 0.45, model + 0.45, color='black',
                        label='_' if model else 'upper bound')
        axes.set_xticks(range(len(rows)), list(rows))
        axes.set_ylabel('streams')
        axes.legend(fontsize='small')
