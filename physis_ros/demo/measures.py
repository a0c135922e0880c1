"""From a recording to numbers. Nothing here knows a setting: everything was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from physis_core.units import NS_PER_S
from physis_ros.demo.recording import ChunkSeen, Recording

Window = tuple[int, int]
NOT_MEASURED = float('nan')
_NEVER_NS = 2**62


@dataclass(frozen=True)
class AgeStatistics:
    """Age of actions at the moment they took effect [ms]; the parts are means and add up to one."""

    p50: float
    p99: float
    max: float
    mean: float
    capture: float
    queue: float
    response: float
    handoff: float


@dataclass(frozen=True)
class Measures:
    """The numbers of a run.

    Rates are taken over the time in which chunks took effect: in each episode from its first
    chunk to its last. They count (first, last], so that N intervals make N/duration.

    Attributes:
        episodes: attempts that ended.
        success_rate: share of them that succeeded.
        sensor_hz: messages received, by source.
        replan_hz: chunks that took effect *and* brought a newer observation.
        chunk_hz: chunks that took effect.
        servo_hz: commands of the servo.
        target_hz: joint targets that moved the arm.
        age_ms: of the chunks that took effect.
        on_time_ratio: share of all chunks that reached the controller by their planned start.
        deadline_misses: the other chunks, those included that never came.
        chunks: all chunks that were due.
        rejected: chunks that the controller refused.
        real_time_factor: simulated time over elapsed time, in the episodes.
        episode_s: median simulated time of a success [s].
    """

    episodes: int
    success_rate: float
    sensor_hz: dict[str, float]
    replan_hz: float
    chunk_hz: float
    servo_hz: float
    target_hz: float
    age_ms: AgeStatistics
    on_time_ratio: float
    deadline_misses: int
    chunks: int
    rejected: int
    real_time_factor: float
    episode_s: float


def measure(recording: Recording) -> Measures:
    """All numbers of a recording; NaN where nothing was seen."""
    ended = [episode for episode in recording.episodes if episode.ended_ns]
    chunks = chunks_of_episodes(recording)
    windows = playing_windows(recording)
    missed, due = deadline_misses(chunks)
    elapsed_s = sum(episode.ended_ns - episode.began_ns for episode in ended) / NS_PER_S
    slipped_s = sum(episode.slipped_s for episode in ended)
    successes = [episode.simulated_s for episode in ended if episode.success]
    return Measures(
        episodes=len(ended),
        success_rate=len(successes) / len(ended) if ended else NOT_MEASURED,
        sensor_hz={source: rate_hz(times, windows)
                   for source, times in sorted(recording.sensors.items())},
        replan_hz=rate_hz(replan_times(chunks), windows),
        chunk_hz=rate_hz(effect_times(chunks), windows),
        servo_hz=rate_hz(recording.servo, windows),
        target_hz=rate_hz(recording.targets, windows),
        age_ms=age_statistics(chunks),
        on_time_ratio=1.0 - missed / due if due else NOT_MEASURED,
        deadline_misses=missed,
        chunks=due,
        rejected=sum(chunk.rejected for chunk in chunks),
        real_time_factor=1.0 - slipped_s / elapsed_s if elapsed_s else NOT_MEASURED,
        episode_s=float(np.median(successes)) if successes else NOT_MEASURED)


def chunks_of_episodes(recording: Recording) -> list[ChunkSeen]:
    """The chunks that were due while an episode was under way."""
    return [chunk for chunk in recording.chunks.values()
            if any(episode.began_ns <= chunk.planned_ns < (episode.ended_ns or _NEVER_NS)
                   for episode in recording.episodes)]


def playing_windows(recording: Recording) -> list[Window]:
    """Per episode: from the first chunk that took effect in it to the last."""
    effects = np.array(effect_times(chunks_of_episodes(recording)), np.int64)
    windows = []
    for episode in recording.episodes:
        inside = effects[(effects >= episode.began_ns)
                         & (effects < (episode.ended_ns or _NEVER_NS))]
        if len(inside) > 1:
            windows.append((int(inside[0]), int(inside[-1])))
    return windows


def rate_hz(times_ns: Iterable[int], windows: Sequence[Window]) -> float:
    """Events a second inside the windows (first excluded, last included); NaN without windows."""
    total_ns = sum(end - begin for begin, end in windows)
    if not total_ns:
        return NOT_MEASURED
    times = np.sort(np.fromiter(times_ns, np.int64))
    events = sum(int(np.searchsorted(times, end, 'right') - np.searchsorted(times, begin, 'right'))
                 for begin, end in windows)
    return events * NS_PER_S / total_ns


def effect_times(chunks: Iterable[ChunkSeen]) -> list[int]:
    """When chunks took effect, ascending."""
    return sorted(chunk.effect_ns for chunk in chunks if chunk.effect_ns is not None)


def replan_times(chunks: Iterable[ChunkSeen]) -> list[int]:
    """When chunks took effect that were computed from a newer observation than any before."""
    effective = sorted((chunk.effect_ns, chunk.capture_ns) for chunk in chunks
                       if chunk.effect_ns is not None)
    newest_ns = 0
    times = []
    for effect_ns, capture_ns in effective:
        if capture_ns > newest_ns:
            newest_ns = capture_ns
            times.append(effect_ns)
    return times


def deadline_misses(chunks: Iterable[ChunkSeen]) -> tuple[int, int]:
    """Chunks that were late, refused or never came; and how many were due.

    The ids of an epoch count up without gaps, so a missing one is a chunk that never came.
    """
    by_epoch: dict[int, list[ChunkSeen]] = {}
    for chunk in chunks:
        by_epoch.setdefault(chunk.epoch, []).append(chunk)
    on_time = due = 0
    for members in by_epoch.values():
        on_time += sum(chunk.on_time for chunk in members)
        ids = [chunk.chunk for chunk in members]
        due += max(ids) - min(ids) + 1
    return due - on_time, due


def lost_times(chunks: Iterable[ChunkSeen]) -> list[int]:
    """Planned starts of chunks that were refused or never came; of a gap in the ids its middle."""
    ordered = sorted(chunks, key=lambda chunk: (chunk.epoch, chunk.chunk))
    times = [chunk.planned_ns for chunk in ordered if chunk.rejected or chunk.arrived_ns is None]
    times += [(before.planned_ns + after.planned_ns) // 2 for before, after in pairwise(ordered)
              if before.epoch == after.epoch and after.chunk > before.chunk + 1]
    return sorted(times)


def age_statistics(chunks: Iterable[ChunkSeen]) -> AgeStatistics:
    """Ages of the chunks that took effect, and their parts; NaN without any."""
    effective = [chunk for chunk in chunks if chunk.age_s is not None]
    if not effective:
        return AgeStatistics(*[NOT_MEASURED] * 8)
    ages_ms = 1e3 * np.array([chunk.age_s for chunk in effective], dtype=float)

    def mean_ms(parts: Iterable[Any]) -> float:
        return 1e3 * float(np.mean(list(parts)))

    return AgeStatistics(
        p50=float(np.percentile(ages_ms, 50)), p99=float(np.percentile(ages_ms, 99)),
        max=float(ages_ms.max()), mean=float(ages_ms.mean()),
        capture=mean_ms(chunk.capture_s for chunk in effective),
        queue=mean_ms(chunk.queue_s for chunk in effective),
        response=mean_ms(chunk.response_s for chunk in effective),
        handoff=mean_ms(chunk.handoff_s for chunk in effective))
