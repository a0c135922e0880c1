"""What is done about an overload: at the entrance, the least important stream first.

A stream that gives way has its tasks served after all others and lets in only one chunk of
``keep_one_in``.  Nothing that has been let in is ever dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from physis_core.runtime.overload import Overload
from physis_core.runtime.stream import Stream

GiveWay = Callable[[Stream, bool, int], None]
"""Have a stream give way (or no longer), and let in one chunk of so many."""

MOST_SHED = 8
BEST_EFFORT = -1
"""Streams of this priority or a lower one have no promise: they always give way."""


class Relief:
    """Sheds more while there is an overload, and less when it is over.  Used by one thread."""

    def __init__(self, give_way: GiveWay) -> None:
        self._give_way = give_way
        self._keeps: dict[Stream, int] = {}

    @property
    def shedding(self) -> dict[int, int]:
        """Slots of the streams that give way, and of how many chunks they keep one."""
        return {stream.slot: keep for stream, keep in self._keeps.items()}

    def answer(self, overloads: Collection[Overload], streams: Sequence[Stream]) -> None:
        """One step; ``streams``: all that are open, the oldest first."""
        for stream in [stream for stream in self._keeps if stream not in streams]:
            del self._keeps[stream]
        if not overloads:
            self._relax()
            return
        for overload in overloads:
            victim = self._victim(overload, streams)
            if victim is not None:
                self._set(victim, min(MOST_SHED, 2 * self._keeps.get(victim, 1)))

    def _victim(self, overload: Overload, streams: Sequence[Stream]) -> Stream | None:
        """The stream that sheds next: of the lowest priority, the newest that sheds not all it can.

        One with a promise sheds only where such streams alone are too many: that best-effort
        streams do not get through is what they are for.  The last stream of a device never sheds:
        then it is not the others who are too many.
        """
        here = [stream for stream in streams if stream.plan.stages_on(overload.device)]
        able = [(stream.options.priority, -age, stream) for age, stream in enumerate(here)
                if self._keeps.get(stream, 1) < MOST_SHED
                and (overload.promised or stream.options.priority <= BEST_EFFORT)]
        if not able or len(here) < 2:
            return None
        return min(able, key=lambda one: one[:2])[2]

    def _relax(self) -> None:
        for stream, keep in list(self._keeps.items()):
            self._set(stream, keep // 2)

    def _set(self, stream: Stream, keep: int) -> None:
        if keep > 1:
            self._keeps[stream] = keep
        else:
            self._keeps.pop(stream, None)
        self._give_way(stream, keep > 1 or stream.options.priority <= BEST_EFFORT, max(1, keep))
