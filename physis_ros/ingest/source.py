"""One observation source: its newest value, how fresh it is, and what is wrong with it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum

import numpy as np

from physis_core.observability.frequency import Frequency
from physis_core.units import NS_PER_S

# So long a refusal is talked about.
_REFUSAL_NS = 10 * NS_PER_S
# Without a message for so long, or for so many expected ones, the rate of a source is zero.
_SILENCE_S = 0.8
_SILENT_BEATS = 3.0


class Condition(str, Enum):
    """What can be said about a source."""

    FRESH = 'fresh'
    MISSING = 'missing: nothing has been received'
    STALE = 'stale'
    FROZEN = 'frozen: identical frames'


@dataclass(frozen=True)
class SourceHealth:
    """A source at one moment, for diagnostics.

    Attributes:
        name: of the source.
        condition: what can be said about it.
        hz: observations received.
        age_ns: since the newest capture; None: nothing received.
        received: messages accepted since activation.
        refused: messages refused since activation.
        last_refusal: why the last one was; empty when that is a while ago.
        text: the value, where it is one for people.
        absence: why it is missing, or what to do about it; empty: not known, or not so.
    """

    name: str
    condition: Condition
    hz: float
    age_ns: int | None
    received: int
    refused: int
    last_refusal: str
    text: str = ''
    absence: str = ''


class Source:
    """The newest value of one source.

    Owned by the node's executor thread; `hz` and `health` are read by the same.
    """

    def __init__(self, name: str, stale_ns: int, frozen_ns: int, expected_hz: float = 0.0
                 ) -> None:
        """Make a source without a value.

        Args:
            name: of the model's input.
            stale_ns: a value older than this is not used; 0: it is used until another comes.
            frozen_ns: identical values for so long are called frozen; 0: never.
            expected_hz: a source that is slow by nature is not silent between its messages;
                0: nothing is expected.
        """
        self.name = name
        self._stale_ns = stale_ns
        self._frozen_ns = frozen_ns
        self._silence_s = max(_SILENCE_S, _SILENT_BEATS / expected_hz if expected_hz else 0.0)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.value: np.ndarray | None = None
        self.text = ''
        self.capture_ns = 0
        self.interval_ns = 0
        self.unseen = 0
        self._frequency = Frequency(silence_s=self._silence_s)
        self._fingerprint = 0
        self._changed_ns = 0
        self._received = 0
        self._refused = 0
        self._last_refusal = ''
        self._refused_ns = 0

    def take(self, value: np.ndarray, capture_ns: int, now_ns: int) -> None:
        """A new value has come."""
        self.interval_ns = capture_ns - self.capture_ns if self._received else 0
        self.value = value
        self.capture_ns = capture_ns
        self.unseen += 1
        self._received += 1
        self._frequency.count(now_ns)
        if self._frozen_ns:
            fingerprint = zlib.crc32(value.data)
            if fingerprint != self._fingerprint or self._received == 1:
                self._fingerprint = fingerprint
                self._changed_ns = now_ns

    def refuse(self, reason: str, now_ns: int) -> None:
        """A message was not acceptable."""
        self._refused += 1
        self._last_refusal = reason
        self._refused_ns = now_ns

    def fresh(self, now_ns: int) -> bool:
        """Whether the value may be used."""
        return self.value is not None and not self._stale(now_ns)

    def hz(self, now_ns: int) -> float:
        """Observations received [Hz]."""
        return self._frequency.hz(now_ns)

    def health(self, now_ns: int) -> SourceHealth:
        """What diagnostics say about it."""
        if self.value is None:
            condition, age_ns = Condition.MISSING, None
        else:
            age_ns = now_ns - self.capture_ns
            if self._stale(now_ns):
                condition = Condition.STALE
            elif self._frozen_ns and now_ns - self._changed_ns > self._frozen_ns:
                condition = Condition.FROZEN
            else:
                condition = Condition.FRESH
        recent = now_ns - self._refused_ns < _REFUSAL_NS
        return SourceHealth(self.name, condition, self.hz(now_ns), age_ns, self._received,
                            self._refused, self._last_refusal if recent else '', self.text)

    def _stale(self, now_ns: int) -> bool:
        return 0 < self._stale_ns < now_ns - self.capture_ns
