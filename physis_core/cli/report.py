"""How commands print: a table for people, one JSON object on the last line for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDE = 160


def print_json(value: Mapping[str, Any]) -> None:
    """One line of JSON."""
    print(json.dumps(value))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers are aligned to the right, floats get four significant digits.

    On a narrow terminal headings are stacked word by word.  Nothing is cut off.
    """
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to respect
        console = Console(width=_WIDE)
    table = compact_table(title)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column if console.width >= _WIDE else column.replace('_', '\n'),
                         justify='right' if numeric else 'left', overflow='fold')
    for row in rows:
        table.add_row(*map(_text, row))
    console.print(table)


def compact_table(title: str) -> Table:
    """A table without lines: what it has to say fits a terminal of 80 columns."""
    return Table(title=title, title_justify='left', header_style='bold', box=None,
                 padding=(0, 2, 0, 0), pad_edge=False)


def print_written(path: Path, what: str) -> None:
    """Say on standard error that a file was written: standard output may be for a machine."""
    print(f'{path}: {what}', file=sys.stderr)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f'{cell:.4g}'
    return ', '.join(map(_text, cell)) if isinstance(cell, list) else str(cell)
