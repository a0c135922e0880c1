"""Shared memory that a killed process could not give back.

Fast DDS reclaims such leftovers when it needs their names again; a demo does not leave them.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path('/dev/shm')
_FILE = re.compile(
    r'(?:sem\.)?(?P<name>fast(?:rtps|dds)_(?:port\d+|[0-9a-f]{16}))(?:_el|_sl|_mutex)?')
# Whoever creates a file maps it within this time.
_YOUNG_S = 1.0


def sweep_fast_dds(folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove this user's segments and ports that no process has open; returns their names."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in folder.glob('*fast*'):
        match = _FILE.fullmatch(path.name)
        if match:
            groups[match['name']].append(path)
    used = set(_open_files(folder)) if groups else set()
    swept = []
    for name, paths in sorted(groups.items()):
        if used.isdisjoint(map(str, paths)) and all(_old_and_own(path) for path in paths):
            for path in paths:
                path.unlink(missing_ok=True)
            swept.append(name)
    return swept


def _old_and_own(path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return True
    return status.st_uid == os.getuid() and time.time() - status.st_ctime > _YOUNG_S


def _open_files(folder: Path) -> Iterator[str]:
    """Files of `folder` that processes have mapped or open, as far as this user may see."""
    for process in Path('/proc').glob('[0-9]*'):
        with suppress(OSError):
            for line in (process / 'maps').read_text().splitlines():
                _, found, name = line.partition(f'{folder}/')
                if found:
                    yield f'{folder}/{name.removesuffix(" (deleted)")}'
        with suppress(OSError):
            for descriptor in (process / 'fd').iterdir():
                with suppress(OSError):
                    yield os.readlink(descriptor)
