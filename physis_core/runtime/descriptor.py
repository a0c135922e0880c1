"""Finding a running engine from another process of the same user.

An engine writes a small file into a directory that only its user may enter: where its logs lie in
shared memory.  It removes the file when it closes; that of a killed engine is removed by whoever
finds it.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from physis_core.errors import InputError
from physis_core.shared_block import is_open


@dataclass(frozen=True)
class EdgeAddress:
    """A link and where its meter lies (-1: the engine)."""

    sender: int
    receiver: int
    kind: str
    meter: str


@dataclass(frozen=True)
class Descriptor:
    """What another process needs to read an engine.

    Attributes:
        pid: of the engine.
        model: its name.
        steps: D of its graph.
        blocks: L of its graph.
        worker_pids: host process of each device.
        chunk_log: address of its chunk log.
        stage_logs: address of each device's log.
        memory: of each device, the words of :data:`~physis_core.runtime.device_memory.WORDS`.
        edges: its links.
    """

    pid: int
    model: str
    steps: int
    blocks: int
    worker_pids: tuple[int, ...]
    chunk_log: str
    stage_logs: tuple[str, ...]
    memory: tuple[tuple[int, ...], ...]
    edges: tuple[EdgeAddress, ...] = ()

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Descriptor:
        """The inverse of :meth:`to_json`."""
        data = json.loads(text)
        for name in ('worker_pids', 'stage_logs'):
            data[name] = tuple(data[name])
        data['memory'] = tuple(map(tuple, data['memory']))
        data['edges'] = tuple(EdgeAddress(**edge) for edge in data['edges'])
        return cls(**data)


class Publication:
    """The file of one engine.  Written by one thread at a time."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._name = f'engine-{os.getpid()}-{next(self._numbers)}.json'
        self._path: Path | None = None

    def write(self, descriptor: Descriptor) -> None:
        """Publish, or publish anew; a reader sees the old or the new text, whole.

        An engine that nobody can find runs all the same: then there is only a warning.
        """
        try:
            path = runtime_directory() / self._name
            handle, name = tempfile.mkstemp(dir=path.parent, prefix='.')
            with os.fdopen(handle, 'w', encoding='utf-8') as file:
                file.write(descriptor.to_json())
            os.replace(name, path)
        except (InputError, OSError) as error:
            warnings.warn(f'`physis top` will not find this engine: {error}')
        else:
            self._path = path

    def remove(self) -> None:
        """Withdraw it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def runtime_directory() -> Path:
    """The directory of descriptors; it is made, for this user alone, where it is not there.

    Raises:
        InputError: it belongs to somebody else, or others may enter it.
    """
    base = os.environ.get('XDG_RUNTIME_DIR')
    path = Path(base) / 'physis' if base else Path(tempfile.gettempdir()) / f'physis-{os.getuid()}'
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or path.is_symlink():
        raise InputError(f'{path} belongs to another user or is open to others; remove it, or set '
                         'XDG_RUNTIME_DIR to a directory of your own')
    return path


def running_engines() -> Sequence[Descriptor]:
    """The engines of this user that are running, oldest file first."""
    found = []
    for path in sorted(runtime_directory().glob('engine-*.json'),
                       key=lambda path: path.stat().st_mtime):
        try:
            descriptor = Descriptor.from_json(path.read_text(encoding='utf-8'))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it has just been removed, or another version wrote it
        if is_open(descriptor.chunk_log):
            found.append(descriptor)
        else:
            path.unlink(missing_ok=True)
    return found


def find_engine(pid: int | None = None) -> Descriptor:
    """The engine of that process, or the one that was started last.

    Raises:
        InputError: none is running.
    """
    engines = [one for one in running_engines() if pid is None or one.pid == pid]
    if not engines:
        whose = 'no engine of yours is running' if pid is None else f'process {pid} runs no engine'
        raise InputError(f'{whose}; start one (`physis demo`, `physis bench streams`) or check the '
                         'user')
    return engines[-1]
