"""Shared memory that a killed process could not give back.

Fast DDS reclaims such leftovers when it needs their names again; a demo does not leave them.
"""

from __future__ import annotations

import fcntl
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
    """Remove this user's segments and ports that no process uses; returns their names.

    What is unused and young is waited for: its process may be about to map it, or may have been
    killed right after its start.
    """
    swept: list[str] = []
    until = time.monotonic() + _YOUNG_S
    while True:
        unused = _unused(folder)
        young = {name for name, paths in unused.items() if not all(map(_old, paths))}
        for name in unused.keys() - young:
            for path in unused[name]:
                path.unlink(missing_ok=True)
            swept.append(name)
        if not young or time.monotonic() > until:
            return sorted(swept)
        time.sleep(_YOUNG_S / 10)


def _unused(folder: Path) -> dict[str, list[Path]]:
    """Files of this user by segment or port, where nobody has one of them mapped, open, locked."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in folder.glob('*fast*'):
        match = _FILE.fullmatch(path.name)
        if match:
            groups[match['name']].append(path)
    used = set(_open_files(folder)) if groups else set()
    return {name: paths for name, paths in groups.items()
            if used.isdisjoint(map(str, paths)) and all(map(_own_and_free, paths))}


def _own_and_free(path: Path) -> bool:
    """Whether the file is this user's and nobody holds a lock on it.

    Fast DDS locks the files of what it reads: so a process in another container is seen too.
    """
    try:
        if path.stat().st_uid != os.getuid():
            return False
        with path.open('rb') as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_ctime > _YOUNG_S
    except FileNotFoundError:
        return True


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
