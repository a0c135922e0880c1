"""A named piece of shared memory, private to the user, whose creator can be seen to be alive."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from pathlib import Path

from physis_core.errors import InputError

FOLDER = Path('/dev/shm')
_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,99}')


class SharedFile:
    """Memory under ``/dev/shm/physis-<name>``.

    The creator holds a file lock for as long as it lives: whoever opens the file can ask whether
    the creator is alive, and what a killed creator left behind is replaced by the next one.
    """

    def __init__(self, path: Path, descriptor: int, owner: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._owner = owner
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.memory = memoryview(self._map)

    @classmethod
    def create(cls, name: str, content: bytes, size: int) -> SharedFile:
        """Create the memory, ``size`` bytes that begin with ``content``.

        Raises:
            InputError: not a name, or a living process has created the same name.
        """
        path = _path(name)
        if path.exists() and cls._locked(path):
            raise InputError(f'shared memory `{name}` belongs to a process that is running; stop '
                             'it, or choose another name')
        # Complete before it gets its name: an opener never sees it without its content.
        draft = path.with_name(f'{path.name}.{os.getpid()}')
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, content, 0)
        os.rename(draft, path)
        return cls(path, descriptor, owner=True)

    @classmethod
    def open(cls, name: str) -> SharedFile | None:
        """Open existing memory; None where there is none."""
        path = _path(name)
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        return cls(path, descriptor, owner=False)

    def creator_alive(self) -> bool:
        """Whether the process that created this memory still has it open."""
        return self._owner or _held(self._descriptor)

    def close(self) -> None:
        """Let go of it; the creator removes the name, an opener removes what a dead one left."""
        remove = self._owner or not self.creator_alive()
        self.memory.release()
        self._map.close()
        if remove and _same(self._path, self._descriptor):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    @staticmethod
    def _locked(path: Path) -> bool:
        descriptor = os.open(path, os.O_RDWR)
        try:
            return _held(descriptor)
        finally:
            os.close(descriptor)


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise InputError(f'shared memory name `{name}` is not usable; take letters, digits, `_`, '
                         '`-` and `.`, at most 100')
    return FOLDER / f'physis-{name}'


def _held(descriptor: int) -> bool:
    """Whether somebody else holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _same(path: Path, descriptor: int) -> bool:
    """Whether the name still stands for this file, and not for a successor's."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
