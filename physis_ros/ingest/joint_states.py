"""Joint states by name: in any order, in parts, among others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sensor_msgs.msg import JointState

from physis_core.delivery.chunk import Floats
from physis_core.errors import InputError

# So many names are remembered, and said, of joints that are not ours.
_NAMES_SAID = 8
# Models take positions as float32.
_LARGEST = float(np.finfo(np.float32).max)


class JointCollector:
    """Keeps the newest position of every joint of the robot; used by one thread."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._column = {name: index for index, name in enumerate(self.names)}
        self._positions = np.full(len(self.names), np.nan)
        self._stamps_ns: list[int | None] = [None] * len(self.names)
        self._foreign: dict[str, None] = {}  # names of others, in the order in which they came

    def clear(self) -> None:
        """Forget all positions."""
        self._positions[:] = np.nan
        self._stamps_ns = [None] * len(self.names)
        self._foreign.clear()

    def take(self, message: JointState, stamp_ns: int) -> bool:
        """Take the positions of a message; whether it had any of ours.

        Raises:
            InputError: a name without position, or a position of ours that is not finite, also as
                float32; nothing of the message was taken.
        """
        for name in message.name:
            if name not in self._column and len(self._foreign) <= _NAMES_SAID:
                self._foreign[name] = None
        if len(message.position) != len(message.name):
            raise InputError(f'joint states name {len(message.name)} joints and have '
                             f'{len(message.position)} positions; the message is refused')
        found = [(self._column[name], position)
                 for name, position in zip(message.name, message.position, strict=True)
                 if name in self._column]
        for column, position in found:
            if not abs(position) <= _LARGEST:
                raise InputError(f'joint `{self.names[column]}`: position is {position}; it must '
                                 'be finite, also as float32; the message is refused')
        for column, position in found:
            self._positions[column] = position
            self._stamps_ns[column] = stamp_ns
        return bool(found)

    def missing(self) -> list[str]:
        """Joints that never had a position."""
        return [name for name, stamp in zip(self.names, self._stamps_ns, strict=True)
                if stamp is None]

    def absence(self, topic: str) -> str:
        """Why there are no positions although messages come; empty: nothing is missing or came."""
        missing = self.missing()
        present = [name for name in self.names if name not in missing]
        named = present + list(self._foreign)
        if not missing or not named:
            return ''
        return (f'{topic} arrives, but never names {_list(missing)}; it names {_list(named)}; '
                'correct `joints.names`')

    def oldest_ns(self) -> int | None:
        """Stamp of the joint that was heard of the longest ago; None: one never was."""
        stamps = [stamp for stamp in self._stamps_ns if stamp is not None]
        return min(stamps) if len(stamps) == len(self.names) else None

    def positions(self) -> Floats:
        """A copy of the positions, ``[joints]``; NaN where unknown."""
        return self._positions.copy()


def _list(names: Sequence[str]) -> str:
    more = ', ...' if len(names) > _NAMES_SAID else ''
    return ', '.join(names[:_NAMES_SAID]) + more
