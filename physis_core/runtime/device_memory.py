"""Where the memory of a host process went."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import torch

WORDS = ('weights', 'kv', 'at_start')
"""Per device on the control board [bytes]; ``at_start``: all of its process, when it was ready."""


@dataclass(frozen=True)
class DeviceProcess:
    """The process that holds a device, and what it set aside [bytes]."""

    pid: int
    weights_bytes: int
    kv_bytes: int


def tensor_bytes() -> int:
    """Bytes of all tensors of this process, each storage once."""
    storages = {}
    for thing in gc.get_objects():
        # Not isinstance: that asks `__class__`, which some lazy objects of torch warn about.
        if issubclass(type(thing), torch.Tensor) and thing.device.type != 'meta':
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def resident_bytes(pid: int | str = 'self', peak: bool = False) -> int:
    """Memory of a process that is resident, now or at its peak; 0: it has ended."""
    name = 'VmHWM:' if peak else 'VmRSS:'
    try:
        lines = Path(f'/proc/{pid}/status').read_text(encoding='utf-8').splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)
