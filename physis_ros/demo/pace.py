"""Keeping a simulation in step with the steady clock, and saying how well that went."""

from __future__ import annotations

from physis_core.units import NS_PER_S


class Pace:
    """Simulated time follows the steady clock; where the machine is too slow, time slips.

    A lag of up to `lag_limit_s` is caught up. A longer one is given up: simulated time then runs
    behind for good, and `slipped_s` says by how much. The arm never races to catch up.
    """

    def __init__(self, now_ns: int, lag_limit_s: float = 0.1) -> None:
        self._began_ns = now_ns
        self._followed_ns = now_ns
        self._lag_limit_ns = round(lag_limit_s * NS_PER_S)
        self._slipped_ns = 0

    @property
    def slipped_s(self) -> float:
        """Time that the simulation did not follow [s]."""
        return self._slipped_ns / NS_PER_S

    def advance_s(self, now_ns: int) -> float:
        """How much to simulate now [s]; call it before anything that depends on the state."""
        lag_ns = max(now_ns - self._followed_ns, 0)
        slip_ns = max(lag_ns - self._lag_limit_ns, 0)
        self._slipped_ns += slip_ns
        self._followed_ns += lag_ns
        return (lag_ns - slip_ns) / NS_PER_S

    def real_time_factor(self, now_ns: int) -> float:
        """Simulated time over elapsed time; 1.0 when nothing slipped."""
        elapsed_ns = now_ns - self._began_ns
        return 1.0 if elapsed_ns <= 0 else 1.0 - self._slipped_ns / elapsed_ns


class Beat:
    """Tells when something periodic is due; beats missed by more than a period are skipped."""

    def __init__(self, hz: float, now_ns: int) -> None:
        self._period_ns = round(NS_PER_S / hz)
        self.due_ns = now_ns + self._period_ns

    def strikes(self, now_ns: int) -> bool:
        """Whether a beat is due; if so, the next one is set."""
        if now_ns < self.due_ns:
            return False
        missed = (now_ns - self.due_ns) // self._period_ns
        self.due_ns += (1 + missed) * self._period_ns
        return True
