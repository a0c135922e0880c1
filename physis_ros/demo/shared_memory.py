"""Shared memory that a killed process could not give back.

Fast DDS keeps a lock on every segment and port it uses, so one that can be locked belongs to
nobody. It reclaims such leftovers when it needs their names again; a demo does not leave them.
"""

from __future__ import annotations

import fcntl
import re
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path('/dev/shm')
_LOCK_FILE = re.compile(r'(?P<name>(fastrtps|fastdds)_(port\d+|[0-9a-f]{16}))_(el|sl)$')


def sweep_fast_dds(folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove the segments and ports that no process holds; returns their names."""
    swept = set()
    for lock in sorted(folder.glob('fast*')):
        match = _LOCK_FILE.match(lock.name)
        if match and _nobody_holds(folder, match['name']):
            for leftover in _files_of(folder, match['name']):
                with suppress(FileNotFoundError, PermissionError):
                    leftover.unlink()
                    swept.add(match['name'])
    return sorted(swept)


def _nobody_holds(folder: Path, name: str) -> bool:
    for suffix in ('_el', '_sl'):
        lock = folder / f'{name}{suffix}'
        try:
            with lock.open('rb') as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            continue
        except (BlockingIOError, PermissionError):
            return False
    return True


def _files_of(folder: Path, name: str) -> list[Path]:
    return [folder / name, folder / f'{name}_el', folder / f'{name}_sl',
            folder / f'sem.{name}_mutex']
