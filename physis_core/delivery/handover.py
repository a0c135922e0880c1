"""How one chunk takes over from the one before: strategies over control points.

Every strategy maps (the plan so far, a new chunk) to the chunk that is delivered, at the new
chunk's own control points.  What is left of a jump between control points is faded out by the
servo, which alone knows what it commanded last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol

import numpy as np

from physis_core.delivery.chunk import Floats, PlannedChunk, finite_difference
from physis_core.delivery.timeline import Sample, Timeline
from physis_core.errors import InputError


class Handover(Protocol):
    """A strategy."""

    def take_over(self, plan: Timeline, chunk: PlannedChunk) -> PlannedChunk:
        """The chunk to deliver; ``plan`` does not contain it yet."""
        ...

    def reset(self) -> None:
        """Forget earlier chunks (a new epoch)."""
        ...


class Replace:
    """The new chunk as it is."""

    def take_over(self, plan: Timeline, chunk: PlannedChunk) -> PlannedChunk:
        """The same chunk."""
        return chunk

    def reset(self) -> None:
        """Nothing is remembered."""


class Blend:
    """Fade from the old plan to the new chunk over ``blend_ns``, with a smooth step.

    Where the old plan has ended, its continuation is a motion that comes to rest.
    """

    def __init__(self, blend_ns: int) -> None:
        self._blend_ns = blend_ns

    def take_over(self, plan: Timeline, chunk: PlannedChunk) -> PlannedChunk:
        """The chunk with its first points drawn towards the old plan."""
        last = plan.last_before(chunk.due_ns)
        if last is None:
            return chunk
        positions = chunk.positions.copy()
        for point in range(chunk.points):
            u = (point * chunk.period_ns) / self._blend_ns if self._blend_ns else 1.0
            if u >= 1.0:
                break
            weight = u * u * (3.0 - 2.0 * u)
            old = self._continued(plan, last, chunk.time_ns(point))
            positions[point] = weight * positions[point] + (1.0 - weight) * old
        return _with_positions(chunk, positions)

    def reset(self) -> None:
        """Nothing is remembered."""

    def _continued(self, plan: Timeline, last: Sample, time_ns: int) -> Floats:
        sample = plan.sample(time_ns)
        if sample is not None:
            return sample.position
        # Velocity falls to zero linearly over one blend after the plan's end.
        elapsed_s = max(time_ns - last.time_ns, 0) * 1e-9
        span_s = self._blend_ns * 1e-9
        u = min(elapsed_s / span_s, 1.0)
        return np.asarray(last.position + last.velocity * span_s * (u - 0.5 * u * u))


class TemporalEnsemble:
    """Average all chunks that speak about a moment, weighted ``exp(-decay * age in chunks)``.

    With ``decay`` 0 all count the same; the greater it is, the more the newest one counts.
    Needs chunks that overlap: a horizon longer than the period.
    """

    def __init__(self, decay: float, most: int = 8) -> None:
        """``most``: how many chunks are kept."""
        self._decay = decay
        self._chunks: deque[PlannedChunk] = deque(maxlen=most)

    def take_over(self, plan: Timeline, chunk: PlannedChunk) -> PlannedChunk:
        """The chunk with each point averaged over the chunks that cover it."""
        self._chunks.append(chunk)
        positions = np.empty_like(chunk.positions)
        for point in range(chunk.points):
            time_ns = chunk.time_ns(point)
            total = np.zeros(chunk.positions.shape[1])
            weights = 0.0
            for age, earlier in enumerate(reversed(self._chunks)):
                index = (time_ns - earlier.due_ns) / earlier.period_ns
                if 0 <= index <= earlier.points - 1:
                    weight = float(np.exp(-self._decay * age))
                    total += weight * _interpolated(earlier.positions, index)
                    weights += weight
            positions[point] = total / weights
        return _with_positions(chunk, positions)

    def reset(self) -> None:
        """Forget earlier chunks."""
        self._chunks.clear()


class PrefixConditioned:
    """Real-time chunking: the first ``prefix_points`` were promised before, and are kept.

    The model got that prefix as a condition, so that the rest of the chunk continues it; the
    points themselves are taken from the old plan, wherever it reaches that far.
    """

    def __init__(self, prefix_points: int) -> None:
        self._prefix_points = prefix_points

    def take_over(self, plan: Timeline, chunk: PlannedChunk) -> PlannedChunk:
        """The chunk with the promised points in their place."""
        positions = chunk.positions.copy()
        for point in range(min(self._prefix_points, chunk.points)):
            sample = plan.sample(chunk.time_ns(point))
            if sample is None:
                break
            positions[point] = sample.position
        return _with_positions(chunk, positions)

    def reset(self) -> None:
        """Nothing is remembered."""


STRATEGIES = ('replace', 'blend', 'ensemble', 'prefix')


def make_handover(strategy: str, *, blend_ns: int, decay: float, prefix_points: int) -> Handover:
    """A strategy by name.

    Raises:
        InputError: no such strategy.
    """
    if strategy == 'replace':
        return Replace()
    if strategy == 'blend':
        return Blend(blend_ns)
    if strategy == 'ensemble':
        return TemporalEnsemble(decay)
    if strategy == 'prefix':
        return PrefixConditioned(prefix_points)
    raise InputError(f'handover `{strategy}` is not known; choose one of {", ".join(STRATEGIES)}')


def _with_positions(chunk: PlannedChunk, positions: Floats) -> PlannedChunk:
    return replace(chunk, positions=positions,
                   velocities=finite_difference(positions, chunk.period_ns))


def _interpolated(positions: Floats, index: float) -> Floats:
    low = min(int(index), len(positions) - 1)
    high = min(low + 1, len(positions) - 1)
    share = index - low
    return (1.0 - share) * positions[low] + share * positions[high]
