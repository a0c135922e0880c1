"""What travels with a chunk: a header of integers, the hidden state, its latent and condition.

The latent and the condition are a few percent of the hidden state; carrying them keeps the work
between two steps (head, re-noise, embedding) wherever the plan puts those stages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from physis_core.models.protocol import ModelDescription, TensorSpec

_FIELDS = ('stream', 'epoch', 'chunk', 'stage', 'deadline_ns', 'release_ns', 'due_ns',
           'capture_ns', 'received_ns', 'started_ns', 'sent_ns', 'finished_ns')
_ALIGN_BYTES = 64

NOTHING = torch.zeros(1)
"""Stands for a tensor that is not there."""


@dataclass(slots=True)
class ChunkState:
    """A chunk on its way through the stages.

    Times are steady-clock nanoseconds.

    Attributes:
        stream: slot of its stream.
        epoch: epoch of its stream.
        chunk: index in the epoch.
        stage: the stage it is at.
        deadline_ns: when its output is due at the end of the pipeline.
        release_ns: when the source let it in.
        due_ns: planned moment at which its output takes effect.
        capture_ns: capture of the oldest observation it has used.
        received_ns: when that observation reached the engine.
        started_ns: when its first stage took the observation.
        sent_ns: when it last left a device.
        finished_ns: when its output was complete.
        observation_ids: the observation read at each step (-1: none yet).
        hidden: ``[tokens, dim]``.
        latent: one chunk's latent.
        condition: the encoded observation.
        outputs: once its last denoising step has ended, until they are sent.
        kv: keys and values that the last stage wrote, ``[tokens, heads, head_dim]`` each.
        release_input: frees the place in the link that it came in, which ``latent`` and
            ``condition`` may lie in for as long as it is on this device.
    """

    stream: int
    epoch: int
    chunk: int
    stage: int = 0
    deadline_ns: int = 0
    release_ns: int = 0
    due_ns: int = 0
    capture_ns: int = 0
    received_ns: int = 0
    started_ns: int = 0
    sent_ns: int = 0
    finished_ns: int = 0
    observation_ids: list[int] = field(default_factory=list)
    hidden: torch.Tensor = NOTHING
    latent: torch.Tensor = NOTHING
    condition: torch.Tensor = NOTHING
    outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    kv: tuple[torch.Tensor, torch.Tensor] | None = None
    release_input: Callable[[], None] | None = None


class HeaderCodec:
    """Chunk headers as bytes."""

    def __init__(self, steps: int) -> None:
        self._struct = struct.Struct(f'@{len(_FIELDS) + steps}q')
        self._fields = len(_FIELDS)
        self.nbytes = aligned(self._struct.size)

    def write(self, buffer: Any, offset: int, state: ChunkState) -> None:
        """Write the header of ``state``."""
        self._struct.pack_into(
            buffer, offset, state.stream, state.epoch, state.chunk, state.stage,
            state.deadline_ns, state.release_ns, state.due_ns, state.capture_ns,
            state.received_ns, state.started_ns, state.sent_ns, state.finished_ns,
            *state.observation_ids)

    def read(self, buffer: Any, offset: int) -> ChunkState:
        """A state without tensors."""
        values = self._struct.unpack_from(buffer, offset)
        state = ChunkState(*values[:self._fields])
        state.observation_ids.extend(values[self._fields:])
        return state


@dataclass(frozen=True)
class PacketLayout:
    """Which tensors travel besides the header, by name."""

    tensors: Mapping[str, TensorSpec]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, each aligned."""
        return sum(aligned(spec.nbytes) for spec in self.tensors.values())

    def views(self, flat: torch.Tensor, offset: int) -> dict[str, torch.Tensor]:
        """Tensors that lie in ``flat`` (uint8) from ``offset`` on, a multiple of a cache line."""
        views = {}
        for name, spec in self.tensors.items():
            views[name] = flat[offset:offset + spec.nbytes].view(spec.torch_dtype).view(spec.shape)
            offset += aligned(spec.nbytes)
        return views


def chunk_layout(description: ModelDescription) -> PacketLayout:
    """What a hop carries."""
    return PacketLayout({'hidden': description.hidden, 'latent': description.latent,
                         'condition': description.condition})


def kv_layout(description: ModelDescription) -> PacketLayout:
    """What a device sends to the readers of KV that it wrote."""
    return PacketLayout({'keys': description.kv_chunk, 'values': description.kv_chunk})


def aligned(nbytes: int) -> int:
    """The next multiple of a cache line."""
    return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
