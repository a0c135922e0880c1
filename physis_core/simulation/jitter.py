"""How long a stage takes, compared with its mean.

Factors are addressed by (device, how many batches it has run), not drawn in the order of events:
two runs with the same seed meet the same factors, whatever else differs between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physis_core.errors import InputError

KINDS = ('lognormal', 'exp')
ROWS = 256


@dataclass(frozen=True)
class Jitter:
    """A distribution of stage times with mean 1.

    Attributes:
        cv: coefficient of variation (``exp`` has 1 whatever is given).
        kind: ``lognormal``, the shape of measured stage times, or ``exp``.
        seed: of everything that is drawn.
    """

    cv: float = 0.0
    kind: str = 'lognormal'
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f'distribution `{self.kind}` is not known; '
                             f'choose one of {", ".join(KINDS)}')
        if not 0.0 <= self.cv < 10.0:
            raise InputError(f'coefficient of variation {self.cv} is outside 0 to 10; 0.05 is a '
                             'quiet device')

    def rows(self, index: int, devices: int) -> NDArray[np.float64]:
        """Factors of batches ``index * ROWS`` and on, ``[ROWS, devices]``."""
        generator = np.random.default_rng((self.seed, index))
        if self.kind == 'exp':
            return generator.standard_exponential((ROWS, devices))
        if not self.cv:
            return np.ones((ROWS, devices))
        sigma = np.sqrt(np.log1p(self.cv ** 2))
        return np.exp(generator.normal(-sigma ** 2 / 2, sigma, (ROWS, devices)))


STEADY = Jitter()
"""Every stage takes its mean."""


class FactorTable:
    """The factor of any batch, drawn in blocks of rows as they are needed."""

    def __init__(self, jitter: Jitter, devices: int) -> None:
        self._jitter = jitter
        self._devices = devices
        self._blocks: list[list[list[float]]] = []

    def factor(self, device: int, count: int) -> float:
        """Of the batch that a device runs after ``count`` others."""
        index, row = divmod(count, ROWS)
        while len(self._blocks) <= index:
            self._blocks.append(self._jitter.rows(len(self._blocks), self._devices).tolist())
        return self._blocks[index][row][device]
