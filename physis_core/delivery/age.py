"""How old an action is at the moment it takes effect, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Age:
    """The four parts of an action's age, in nanoseconds; they add up to the whole.

    Attributes:
        capture_ns: from the capture of the oldest input until the observation reached the engine.
        queue_ns: from there until the first stage took it.
        response_ns: from there until the chunk was finished.
        handoff_ns: from there until the action took effect.
    """

    capture_ns: int
    queue_ns: int
    response_ns: int
    handoff_ns: int

    @property
    def total_ns(self) -> int:
        """From capture to effect."""
        return self.capture_ns + self.queue_ns + self.response_ns + self.handoff_ns
