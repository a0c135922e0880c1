"""How commands print: a table for people, one JSON object on the last line for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDE = 160


def print_json(value: Mapping[str, Any]) -> None:
    """One line of JSON."""
    print(json.dumps(value))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers are aligned to the right, floats get four significant digits."""
    table = Table(title=title, title_justify='left', header_style='bold')
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify='right' if numeric else 'left')
    for row in rows:
        table.add_row(*(f'{cell:.4g}' if isinstance(cell, float) else str(cell) for cell in row))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to respect
        console = Console(width=_WIDE)
    console.print(table)
