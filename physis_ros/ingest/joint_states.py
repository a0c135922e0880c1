"""Joint states by name: in any order, in parts, among others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sensor_msgs.msg import JointState

from physis_core.delivery.chunk import Floats
from physis_core.errors import InputError


class JointCollector:
    """Keeps the newest position of every joint of the robot; used by one thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._column = {name: index for index, name in enumerate(self.names)}
        self._positions = np.full(len(self.names), np.nan)
        self._stamps_ns: list[int | None] = [None] * len(self.names)

    def clear(self) -> None:
        """Forget all positions."""
        self._positions[:] = np.nan
        self._stamps_ns = [None] * len(self.names)

    def take(self, message: JointState, stamp_ns: int) -> bool:
        """Take the positions of a message; whether it had any of ours.

        Raises:
            InputError: a name without position, or a position of ours that is not finite; nothing
                of the message was taken.
        """
        if len(message.position) != len(message.name):
            raise InputError(f'joint states name {len(message.name)} joints and have '
                             f'{len(message.position)} positions; the message is refused')
        found = [(self._column[name], position)
                 for name, position in zip(message.name, message.position, strict=True)
                 if name in self._column]
        for column, position in found:
            if not np.isfinite(position):
                raise InputError(f'joint `{self.names[column]}`: position is {position}; it must '
                                 'be finite, the message is refused')
        for column, position in found:
            self._positions[column] = position
            self._stamps_ns[column] = stamp_ns
        return bool(found)

    def missing(self) -> list[str]:
        """Joints that never had a position."""
        return [name for name, stamp in zip(self.names, self._stamps_ns, strict=True)
                if stamp is None]

    def oldest_ns(self) -> int | None:
        """Stamp of the joint that was heard of the longest ago; None: one never was."""
        stamps = [stamp for stamp in self._stamps_ns if stamp is not None]
        return min(stamps) if len(stamps) == len(self.names) else None

    def positions(self) -> Floats:
        """A copy of the positions, ``[joints]``; NaN where unknown."""
        return self._positions.copy()
