"""Messages that are sent when their time has come, not when they are ready.

A joint_trajectory_controller gives up what it follows the moment a new trajectory arrives, even one
that starts later. A chunk that is finished early must therefore wait on this side.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from physis_core.units import NS_PER_S

Message = TypeVar('Message')
Sent = Callable[[int], None]

# More chunks than this are never ahead of their time; the oldest would be replaced anyway.
_MOST_WAITING = 64


class TimedPublisher(Generic[Message]):
    """Sends messages in the order in which they were given, from a thread of its own."""

    def __init__(self, publish: Callable[[Message], None], early_ns: int) -> None:
        """Start waiting.

        Args:
            publish: sends a message (called in this object's thread, or in that of `only`).
            early_ns: how long before its due time a message is sent.
        """
        self._publish = publish
        self._early_ns = early_ns
        self._waiting: deque[tuple[int, Message, Sent | None]] = deque(maxlen=_MOST_WAITING)
        self._news = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name='physis-timed', daemon=True)
        self._thread.start()

    def give(self, message: Message, due_ns: int, sent: Sent | None = None) -> None:
        """Send `message` shortly before `due_ns` (steady clock), at once if that is past.

        ``sent`` is told when it went out [ns] (in this object's thread; it must not wait).
        """
        with self._news:
            self._waiting.append((due_ns - self._early_ns, message, sent))
            self._news.notify()

    def clear(self) -> None:
        """Forget what waits. When this returns, nothing given before is sent any more."""
        with self._news:
            self._waiting.clear()

    def only(self, message: Message) -> None:
        """Send `message` at once (in this thread), and nothing that was given before it."""
        with self._news:
            self._waiting.clear()
            self._publish(message)

    def close(self) -> None:
        """Forget what waits, and end the thread."""
        with self._news:
            self._waiting.clear()
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._news:
            while not self._closed:
                now_ns = time.monotonic_ns()
                if not self._waiting:
                    self._news.wait()
                elif self._waiting[0][0] > now_ns:
                    self._news.wait((self._waiting[0][0] - now_ns) / NS_PER_S)
                else:
                    _, message, sent = self._waiting.popleft()
                    self._publish(message)
                    if sent is not None:
                        sent(time.monotonic_ns())
