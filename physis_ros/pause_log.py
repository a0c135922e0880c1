"""What the log says while inputs stay away: at once, once, and not several times a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from physis_core.units import NS_PER_S

# After everything was forgotten, inputs are awaited for so long before their absence is a warning.
_AWAITED_NS = 2 * NS_PER_S
# Least time between two warnings.
_BETWEEN_NS = 5 * NS_PER_S


class Logger(Protocol):
    """Of a node, or of a test."""

    def info(self, message: str) -> object:
        """Say what is expected."""

    def warning(self, message: str) -> object:
        """Say what is not."""


class PauseLog:
    """Says why no chunks are made for want of inputs; used by one thread."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._forgotten_ns: int | None = None
        self._awaited_ns: int | None = None
        self._warned_ns: int | None = None
        self._said: tuple[str, ...] = ()
        self._unsaid = 0
        self._lacking = False

    def forgotten(self, now_ns: int) -> None:
        """Everything sensed was forgotten: for a while nothing is missed, only awaited."""
        self._forgotten_ns = now_ns
        self._said, self._lacking = (), False

    def look(self, lacking: Sequence[str], now_ns: int) -> None:
        """Take in which inputs are not fresh; to be called often."""
        names = tuple(lacking)
        if not names:
            self._said, self._lacking = (), False
            self._forgotten_ns = None
            return
        begins, self._lacking = not self._lacking, True
        if self._forgotten_ns is not None and now_ns - self._forgotten_ns < _AWAITED_NS:
            if begins and (self._awaited_ns is None or now_ns - self._awaited_ns >= _AWAITED_NS):
                self._awaited_ns = now_ns
                self._logger.info(f'waiting for input from {", ".join(names)}')
            return
        if names == self._said:
            return
        if self._warned_ns is not None and now_ns - self._warned_ns < _BETWEEN_NS:
            self._unsaid += begins
            return
        more = f' ({self._unsaid} pauses since the last warning)' if self._unsaid else ''
        self._logger.warning(f'no fresh input from {", ".join(names)}: paused{more}')
        self._said, self._warned_ns, self._unsaid = names, now_ns, 0
