"""How a process is told to end, and is left alone while it does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


def endings() -> list[signal.Signals]:
    """The signals that tell a process to end.

    SIGHUP is that of a terminal that was closed, or of a lost connection to it; `nohup` has it
    ignored, and so it stays.
    """
    return [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]


def ignore_endings() -> None:
    """The process is all but gone: let what it holds in the system be given back undisturbed.

    Python takes its own handlers away before it has ended, and would die of a second signal.
    """
    for number in endings():
        signal.signal(number, signal.SIG_IGN)


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
