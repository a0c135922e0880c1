"""Predicted stage times, corrected by what is measured."""

from __future__ import annotations

from collections.abc import Callable

_WEIGHT = 0.05


class StageTimes:
    """t(block, batch) of one device [ns]: a prior where nothing was measured, then a running mean.

    Without a prior an unmeasured batch is taken to cost what the largest smaller one costs.
    """

    def __init__(self, prior: Callable[[int, int], int] | None = None) -> None:
        self._prior = prior
        self._mean_ns: dict[tuple[int, int], float] = {}

    def predict(self, block: int, batch: int) -> int:
        """Expected time of a batch [ns]; 0 where nothing is known."""
        mean = self._mean_ns.get((block, batch))
        if mean is not None:
            return int(mean)
        if self._prior is not None:
            return self._prior(block, batch)
        smaller = [size for where, size in self._mean_ns if where == block and size < batch]
        return int(self._mean_ns[block, max(smaller)]) if smaller else 0

    def note(self, block: int, batch: int, took_ns: int) -> None:
        """Take a measurement into the mean."""
        mean = self._mean_ns.get((block, batch))
        self._mean_ns[block, batch] = (took_ns if mean is None
                                       else mean + _WEIGHT * (took_ns - mean))
