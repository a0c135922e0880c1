"""How commands print: a table for people, one JSON object on the last line for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from physis_core.errors import InputError

_WIDE = 160


def print_json(value: Mapping[str, Any]) -> None:
    """One line of JSON."""
    print(json.dumps(value))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers are aligned to the right, floats get four significant digits, no exponent.

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


def check_place(path: Path | None) -> None:
    """Refuse a file that could not be written, before the work that would be lost with it.

    Raises:
        InputError: it is a folder, or there is no such folder, or nothing may be written there.
    """
    if path is None:
        return
    if path.is_dir():
        raise InputError(f'`{path}` is a folder; give the name of a file to write')
    if not path.parent.is_dir():
        raise InputError(f'`{path}` cannot be written: there is no folder `{path.parent}`; make '
                         'it first, or choose another place')
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f'`{path}` cannot be written: permission denied; choose another place')


def write_text(path: Path, text: str) -> None:
    """Write a whole file, or leave what was there.

    Raises:
        InputError: it cannot be written.
    """
    fresh = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        check_place(path)
        if path.exists() and not path.is_file():  # a pipe, or a device
            path.write_text(text, encoding='utf-8')
            return
        fresh.write_text(text, encoding='utf-8')
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InputError(f'`{path}` cannot be written ({error.strerror}); choose another place'
                         ) from error


def print_written(path: Path, what: str) -> None:
    """Say on standard error that a file was written: standard output may be for a machine."""
    print(f'{path}: {what}', file=sys.stderr)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        if abs(cell) >= 1e4:
            return f'{cell:.0f}'
        return f'{cell:.4g}' if abs(cell) >= 1e-4 or cell == 0 else f'{cell:.7f}'
    return ', '.join(map(_text, cell)) if isinstance(cell, list) else str(cell)
