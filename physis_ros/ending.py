"""How a process is told to end, and is left alone while it does."""

from __future__ import annotations

import signal
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
