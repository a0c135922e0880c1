"""The two ends of a link, whatever carries it.

A link has a fixed number of places (*slots*), all of one shape.  It never blocks: a full link
refuses, an empty one returns nothing, and each end is woken when that changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch

from physis_core.runtime.packets import ChunkState


class Message(NamedTuple):
    """What the receiver sees: tensors are views of the slot until :meth:`Inlet.release`."""

    state: ChunkState
    tensors: Mapping[str, torch.Tensor]
    slot: int


class Outlet(Protocol):
    """The sending end.  Owned by one thread of one process."""

    def try_send(self, state: ChunkState, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Copy a message into a free slot; False where none is free.

        It may not be received before :meth:`announce`.
        """
        ...

    def announce(self) -> None:
        """Have the receiver look: after the last of messages that belong together, so that what
        ran as a batch arrives as one."""
        ...


class Inlet(Protocol):
    """The receiving end.  Owned by one thread of one process."""

    def pull(self) -> Message | None:
        """The next message, in the order sent; None: there is none."""
        ...

    def release(self, slot: int) -> None:
        """Give a slot back.  Its tensors may be overwritten from now on."""
        ...
