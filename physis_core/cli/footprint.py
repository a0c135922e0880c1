"""What processes hold: memory, descriptors, threads.  Read from /proc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from physis_core.runtime.device_memory import resident_bytes


@dataclass(frozen=True)
class Footprint:
    """Of several processes together.

    Attributes:
        processes: how many of them are alive.
        resident_bytes: memory that is resident.
        descriptors: open files, sockets, pipes and shared blocks.
        shared_blocks: mappings of shared memory of this project.
        threads: of all.
    """

    processes: int
    resident_bytes: int
    descriptors: int
    shared_blocks: int
    threads: int


def footprint(pids: Sequence[int]) -> Footprint:
    """Of these processes, now."""
    alive = [pid for pid in pids if Path(f'/proc/{pid}/status').exists()]
    return Footprint(
        len(alive), sum(resident_bytes(pid) for pid in alive),
        sum(_count(pid, 'fd') for pid in alive), sum(_shared_blocks(pid) for pid in alive),
        sum(_count(pid, 'task') for pid in alive))


def _count(pid: int, folder: str) -> int:
    try:
        return sum(1 for _ in Path(f'/proc/{pid}/{folder}').iterdir())
    except OSError:
        return 0


def _shared_blocks(pid: int) -> int:
    try:
        return Path(f'/proc/{pid}/maps').read_text(encoding='utf-8').count('/memfd:physis')
    except OSError:
        return 0
