"""How a process is told to end, and is left alone while it does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


def interrupt_once(*numbers: signal.Signals) -> None:
    """Raise KeyboardInterrupt at the first of these signals, and ignore Ctrl-C from then on.

    A Ctrl-C may come twice: from the terminal to the whole group, and from `ros2 launch` to each
    process. The second must not break into the ending. To be called before `rclpy.init`, whose
    own handlers call these.
    """
    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


class Ending:
    """Whether the process was told to end; only work that takes long is broken into.

    Made and used by the main thread.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        """From now on these signals tell it."""
        self.told = threading.Event()
        self._breakable = False
        for number in numbers:
            signal.signal(number, self._tell)

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in this block, once, when the process is told to end."""
        self._breakable = True
        try:
            if self.told.is_set() and self._breakable:
                self._breakable = False
                raise KeyboardInterrupt
            yield
        finally:
            self._breakable = False

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self.told.set()
        if self._breakable:
            self._breakable = False
            raise KeyboardInterrupt
