"""Progress bars on the terminal, silent where output is for machines."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar('Item')


def progress(items: Iterable[Item], label: str, quiet: bool = False) -> Iterable[Item]:
    """The items, with a bar on standard error unless ``quiet`` or not a terminal."""
    return tqdm(items, desc=label, disable=quiet or not sys.stderr.isatty(), leave=False)
