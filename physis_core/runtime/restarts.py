"""When a lost host is started again: at once after a fault, ever later where that is in vain."""

from __future__ import annotations

from physis_core.units import ns_from_s

_AT_ONCE = 10  # starts in vain: faults come in groups
_FIRST_PAUSE_NS = ns_from_s(0.5)
_MOST_DOUBLINGS = 4
_STEADY_NS = ns_from_s(20.0)  # more than the longest pause


class Restarts:
    """The starts of one host.  Time is an argument [ns]; so is how many tasks the host ever did.

    A start was worth it if the host did any task or stayed for 20 s.  After a number of
    others in a row, each next one waits twice as long.
    """

    def __init__(self, now_ns: int) -> None:
        self._ready_ns = self._due_ns = now_ns
        self._tasks = 0
        self._in_vain = 0

    @property
    def in_vain(self) -> int:
        """Starts in a row that were not worth it, so far as is known."""
        return self._in_vain

    def wait_ns(self, now_ns: int, tasks: int) -> int:
        """How long the host, which is lost, is not to be started yet; 0: start it now."""
        if tasks > self._tasks or now_ns - self._ready_ns > _STEADY_NS:
            self._in_vain, self._due_ns = 0, now_ns
        return max(self._due_ns - now_ns, 0)

    def started(self, now_ns: int, tasks: int, failed: bool = False) -> None:
        """It was started once more; ``failed``: it said why it cannot be, so at once is no use."""
        self._ready_ns, self._tasks = now_ns, tasks
        self._in_vain += 1
        doublings = min(max(self._in_vain - _AT_ONCE, 0), _MOST_DOUBLINGS)
        pauses = failed or self._in_vain >= _AT_ONCE
        self._due_ns = now_ns + (_FIRST_PAUSE_NS << doublings if pauses else 0)
