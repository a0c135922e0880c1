"""The newest observation: all sources together, none of them waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from physis_ros.ingest.source import Source

# Share of a period beyond which two captures are of different beats.
_APART = 0.75


@dataclass(frozen=True, eq=False)
class Observation:
    """Arrays by name, and the capture time of the oldest."""

    arrays: dict[str, np.ndarray]
    capture_ns: int


class Assembler:
    """Makes an observation when something new is worth one; used by one thread.

    Cameras that beat together are put together: an observation is made when each of them has a
    new frame.  One that beats faster than the others does not wait: its second new frame makes an
    observation, whatever the others do.  Frames that were captured almost a period apart are not
    put together: the other half of the newer one is about to come, and the pairs would stay one
    frame apart for ever.
    """

    def __init__(self, cameras: Sequence[Source], others: Sequence[Source],
                 held: Sequence[Source] = ()) -> None:
        """Put sources together.

        Args:
            cameras: trigger observations.
            others: joints and the like; they trigger only where there is no camera.
            held: what holds until it is changed; it neither triggers nor ages an observation.
        """
        self._triggers = tuple(cameras) or tuple(others)
        self._captured = (*cameras, *others)
        self.sources = (*cameras, *others, *held)

    def unfit(self, now_ns: int) -> list[Source]:
        """The sources that are missing or stale: without them there is no observation."""
        return [source for source in self.sources if not source.fresh(now_ns)]

    def observation(self, now_ns: int) -> Observation | None:
        """The newest observation, or None: nothing new, or a source is missing or stale."""
        if not self._complete() or self.unfit(now_ns):
            return None
        for source in self.sources:
            source.unseen = 0
        return Observation(
            {source.name: source.value for source in self.sources if source.value is not None},
            min(source.capture_ns for source in self._captured))

    def _complete(self) -> bool:
        unseen = [source.unseen for source in self._triggers]
        if max(unseen) > 1:
            return True
        captures = [source.capture_ns for source in self._triggers]
        period_ns = min(source.interval_ns for source in self._triggers)
        apart = max(captures) - min(captures) > _APART * period_ns > 0
        return min(unseen) > 0 and not apart
