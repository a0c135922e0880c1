"""Shared memory that all processes of an engine read: control words, newest observations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from physis_core.errors import InputError
from physis_core.models.protocol import TensorSpec
from physis_core.runtime.device_memory import WORDS
from physis_core.runtime.packets import PacketLayout, aligned
from physis_core.shared_block import SharedBlock

CLOSED = -1


class ControlBoard:
    """A few integers for every host process, device and stream of an engine.

    Attributes:
        bells: uint32, the futex word of every host process, then that of the engine.
        heartbeat_ns: int64 per host process; written by the host, read by the engine.
        attention: int64 per device, 1 = look at your links; set by anyone, cleared by the device.
        requests: int64 per host process, counts control messages; written by the engine.
        epochs: int64 per stream slot, -1 = closed; written by the engine, read by devices.
        yields: int64 per stream slot, 1 = its tasks give way; written by the engine.
        memory: int64 per device and word of :data:`~physis_core.runtime.device_memory.WORDS`;
            written by the host when it is ready.
        resets: int64[1], counts changes of ``epochs``; written by the engine.
    """

    def __init__(self, block: SharedBlock, hosts: int, devices: int, streams: int) -> None:
        words = np.frombuffer(block.memory, np.int64)
        sizes = (hosts + 1, hosts, devices, hosts, streams, streams, devices * len(WORDS), 1)
        (bells, self.heartbeat_ns, self.attention, self.requests, self.epochs,
         self.yields, memory, self.resets) = np.split(words[:sum(sizes)], np.cumsum(sizes)[:-1])
        self.bells = bells.view(np.uint32)[::2]
        self.memory = memory.reshape(devices, len(WORDS))
        self.engine_bell = hosts
        self.block = block

    @classmethod
    def create(cls, hosts: int, devices: int, streams: int) -> ControlBoard:
        """A new board, every stream closed."""
        size = 8 * (hosts + 1 + hosts + devices * (1 + len(WORDS)) + hosts + 2 * streams + 1)
        board = cls(SharedBlock.create(size), hosts, devices, streams)
        board.epochs[:] = CLOSED
        return board


def check_arrays(what: str, arrays: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec]
                 ) -> None:
    """Refuse arrays that are not of the declared names, shapes and types, or not finite.

    Raises:
        InputError: with ``what`` they are, the name, what came and what was expected.
    """
    if not isinstance(arrays, Mapping):
        raise InputError(f'{what} is {type(arrays).__name__}; give arrays by name')
    for name, spec in specs.items():
        if name not in arrays:
            raise InputError(f'{what} lacks `{name}`; it needs {", ".join(sorted(specs))}')
        array = np.asarray(arrays[name])
        if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
            raise InputError(f'{what} `{name}` is {array.dtype} {list(array.shape)}, expected '
                             f'{spec.dtype} {list(spec.shape)}; convert it first')
        if array.dtype.kind == 'f' and not np.isfinite(array).all():
            raise InputError(f'{what} `{name}` holds NaN or infinity; drop it at its source')
    unknown = sorted(set(arrays) - set(specs))
    if unknown:
        takes = ', '.join(sorted(specs)) or 'none'
        raise InputError(f'{what} has an unknown part `{unknown[0]}`; the model takes {takes}')


@dataclass(frozen=True)
class Observation:
    """What a robot saw, and when.

    Attributes:
        identity: counts the observations of the stream.
        capture_ns: capture of its oldest part (steady clock).
        received_ns: when the engine got it (steady clock).
        arrays: by name.
    """

    identity: int
    capture_ns: int
    received_ns: int
    arrays: Mapping[str, np.ndarray]


class ObservationBoard:
    """The newest observation of one stream.

    The engine writes, any device reads.  A writer goes round a few places, so that a reader has
    that many writes of time to copy one; should it be overtaken all the same, it reads again.
    """

    PLACES = 4
    _WORDS = 4  # version, identity, capture_ns, received_ns

    def __init__(self, block: SharedBlock, observation: Mapping[str, TensorSpec]) -> None:
        self.block = block
        self.specs = observation
        layout = PacketLayout(observation)
        stride = aligned(8 * self._WORDS) + layout.nbytes
        self._newest = np.frombuffer(block.memory, np.int64, 1)
        flat = torch.frombuffer(block.memory, dtype=torch.uint8)
        self._words, self._arrays = [], []
        for place in range(self.PLACES):
            offset = aligned(8) + place * stride
            self._words.append(np.frombuffer(block.memory, np.int64, self._WORDS, offset))
            views = layout.views(flat, offset + aligned(8 * self._WORDS))
            self._arrays.append({name: view.numpy() for name, view in views.items()})

    @classmethod
    def create(cls, observation: Mapping[str, TensorSpec]) -> ObservationBoard:
        """A board that holds nothing yet."""
        stride = aligned(8 * cls._WORDS) + PacketLayout(observation).nbytes
        return cls(SharedBlock.create(aligned(8) + cls.PLACES * stride), observation)

    @property
    def newest_identity(self) -> int:
        """Identity of the newest observation; 0: there is none."""
        return int(self._newest[0])

    def clear(self) -> None:
        """Forget what was seen (a reset): the next observation is the only one."""
        self._newest[0] = 0

    def write(self, identity: int, arrays: Mapping[str, np.ndarray], capture_ns: int) -> None:
        """Put a checked observation on the board."""
        place = identity % self.PLACES
        words = self._words[place]
        words[0] += 1  # odd: being written
        for name, view in self._arrays[place].items():
            view[...] = arrays[name]
        words[1:] = (identity, capture_ns, time.monotonic_ns())
        words[0] += 1
        self._newest[0] = identity

    def read(self) -> Observation | None:
        """A copy of the newest observation; None: there is none."""
        while True:
            identity = int(self._newest[0])
            if not identity:
                return None
            words = self._words[identity % self.PLACES]
            version = int(words[0])
            if version % 2:
                continue
            _, seen, capture_ns, received_ns = (int(word) for word in words)
            arrays = {name: view.copy()
                      for name, view in self._arrays[identity % self.PLACES].items()}
            if words[0] == version:
                return Observation(seen, capture_ns, received_ns, arrays)
