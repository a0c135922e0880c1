"""The plots of the demo's report, each from a recording alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from physis_core.units import NS_PER_MS, NS_PER_S
from physis_ros.demo.measures import (
    Window,
    chunks_of_episodes,
    effect_times,
    lost_times,
    playing_windows,
    replan_times,
)
from physis_ros.demo.recording import ChunkSeen, EpisodeSeen, Recording
from physis_ros.demo.scene import JOINT_NAMES

_WIDTH_IN = 10.0
_BIN_S = 2.0
# Curves that lie on one another stay visible: each is thinner than the one below it, with other
# dashes.
_WIDEST_PT, _THINNEST_PT = 6.0, 1.5
_DASHES = ('-', '--', ':')
_TIMELINE_CHUNKS = 24
_JOINT_SECONDS = 8.0
_SHEET_COLUMNS = 8
_SHEET_ROWS = 10
_PARTS = ('capture', 'queue', 'response', 'handoff')
_COLOURS = {'capture': '#8da0cb', 'queue': '#e5c494', 'response': '#fc8d62', 'handoff': '#66c2a5'}
_PLAYED = '#3b5b92'
_DEADLINES = {'on time': '#66c2a5', 'late': '#d95f02', 'refused or never came': '#7b3294'}


def ages(recording: Recording) -> Figure:
    """Age of every chunk at its effect, with its four parts stacked."""
    figure, axes = _axes(3.2)
    origin_ns = _origin_ns(recording)
    effective = [chunk for chunk in recording.chunks.values() if chunk.age_s is not None]
    for episode in recording.episodes:
        chunks = _within(effective, episode)
        if not chunks:
            continue
        times_s = [((chunk.effect_ns or 0) - origin_ns) / NS_PER_S for chunk in chunks]
        parts_ms = [[1e3 * (getattr(chunk, f'{part}_s') or 0.0) for chunk in chunks]
                    for part in _PARTS]
        axes.stackplot(times_s, parts_ms, colors=[_COLOURS[p] for p in _PARTS])
    _legend(figure, [*_PARTS], [*_COLOURS.values()])
    _label(axes, 'time [s]', 'age at effect [ms]')
    return figure


def deadlines(recording: Recording) -> Figure:
    """When every chunk arrived, against its planned start; a line for each that did not."""
    figure, axes = _axes(2.8)
    origin_ns, chunks = _origin_ns(recording), chunks_of_episodes(recording)
    for name, on_time in (('on time', True), ('late', False)):
        points = [((chunk.planned_ns - origin_ns) / NS_PER_S,
                   (chunk.arrived_ns - chunk.planned_ns) / NS_PER_MS) for chunk in chunks
                  if chunk.arrived_ns is not None and not chunk.rejected
                  and chunk.on_time == on_time]
        axes.plot([time_s for time_s, _ in points], [late_ms for _, late_ms in points], '.',
                  color=_DEADLINES[name])
    axes.vlines([(time_ns - origin_ns) / NS_PER_S for time_ns in lost_times(chunks)], 0.0, 1.0,
                colors=_DEADLINES['refused or never came'], linewidth=1.0,
                transform=axes.get_xaxis_transform())
    axes.axhline(0.0, color='k', linewidth=0.8)
    _legend(figure, [*_DEADLINES], [*_DEADLINES.values()])
    _label(axes, 'planned start [s]', 'arrival after it [ms]')
    return figure


def frequencies(recording: Recording) -> Figure:
    """The four frequencies over time, on one logarithmic axis: they are not each other.

    A line for each episode, from its first chunk to its last; between them the scene is reset.
    """
    figure, axes = _axes(3.6)
    chunks = list(recording.chunks.values())
    series: dict[str, Sequence[int]] = {
        f'sensor: {source}': list(times) for source, times in sorted(recording.sensors.items())}
    series |= {'chunk': effect_times(chunks), 'replan': replan_times(chunks),
               'servo': list(recording.servo)}
    origin_ns, windows = _origin_ns(recording), playing_windows(recording)
    widths_pt = np.linspace(_WIDEST_PT, _THINNEST_PT, len(series))
    for number, (name, times_ns) in enumerate(series.items()):
        if times_ns and windows:
            axes.plot(*_rates(times_ns, windows, origin_ns), label=name,
                      linestyle=_DASHES[number % len(_DASHES)], linewidth=widths_pt[number],
                      solid_capstyle='butt')
    axes.set_yscale('log')
    if windows:
        axes.legend(loc='upper left', bbox_to_anchor=(1.0, 1.0), frameon=False)
    _label(axes, 'time [s]', 'rate [Hz]')
    return figure


def timeline(recording: Recording, episode: EpisodeSeen) -> Figure:
    """The life of an episode's first chunks: captured, queued, computed, waiting, played."""
    figure, axes = _axes(4.2)
    chunks = [chunk for chunk in _within(recording.chunks.values(), episode)
              if chunk.effect_ns is not None][:_TIMELINE_CHUNKS]
    for row, chunk in enumerate(chunks):
        begin_s = (chunk.capture_ns - episode.began_ns) / NS_PER_S
        for part in _PARTS:
            length_s = max(getattr(chunk, f'{part}_s') or 0.0, 0.0)
            axes.barh(row, length_s, left=begin_s, color=_COLOURS[part], height=0.7)
            begin_s += length_s
        if row + 1 < len(chunks):
            until_s = ((chunks[row + 1].effect_ns or 0) - episode.began_ns) / NS_PER_S
            axes.barh(row, until_s - begin_s, left=begin_s, color=_PLAYED, height=0.7)
        axes.plot((chunk.planned_ns - episode.began_ns) / NS_PER_S, row, '|k', markersize=9)
    _legend(figure, [*_PARTS, 'played'], [*_COLOURS.values(), _PLAYED])
    axes.invert_yaxis()
    _label(axes, f'time since the start of episode {episode.number} [s]; | planned start', 'chunk')
    return figure


def joints(recording: Recording) -> Figure:
    """Joint commands against measured positions, the latest seconds of the run."""
    figure, grid = plt.subplots(3, 2, figsize=(_WIDTH_IN, 5.4), sharex=True, layout='constrained')
    measured, commanded = list(recording.measured), list(recording.commanded)
    if measured and commanded:
        end_ns = measured[-1][0]
        for values, label, style in ((commanded, 'commanded', '--'), (measured, 'measured', '-')):
            recent = [(time_ns, row) for time_ns, row in values
                      if end_ns - time_ns < _JOINT_SECONDS * NS_PER_S]
            times_s = [(time_ns - end_ns) / NS_PER_S for time_ns, _ in recent]
            for column, axes in enumerate(grid.flat):
                axes.plot(times_s, [row[column] for _, row in recent], style, label=label,
                          linewidth=1.2)
    for name, axes in zip(JOINT_NAMES, grid.flat, strict=True):
        axes.set_title(name, fontsize=9)
        _label(axes, '', '[rad]')
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside upper right', ncols=2, frameon=False)
    for axes in grid[-1]:
        axes.set_xlabel('time before the end of the run [s]')
    return figure


def contact_sheet(episodes: Iterable[EpisodeSeen]) -> Figure:
    """Camera frames as they were published: a row per episode, both cameras one above the other."""
    seen = list(episodes)
    shown = [episode for episode in seen if episode.frames][:_SHEET_ROWS]
    rows = max(len(shown), 1)
    figure, grid = plt.subplots(
        rows, 1, figsize=(_WIDTH_IN, 2.55 * rows), squeeze=False, layout='constrained')
    for axes in grid.flat:
        axes.axis('off')
    figure.suptitle(f'{len(shown)} of {len(seen)} episodes', fontsize=10)
    for episode, axes in zip(shown, grid.flat, strict=False):
        axes.imshow(np.concatenate([_strip(episode, camera) for camera in ('front', 'wrist')]))
        outcome = 'success' if episode.success else 'no success' if episode.ended_ns else 'cut off'
        axes.set_title(f'episode {episode.number} (seed {episode.seed}): {outcome} after '
                       f'{episode.simulated_s:.1f} s', fontsize=9, loc='left')
    return figure


def _strip(episode: EpisodeSeen, camera: str) -> NDArray[np.uint8]:
    frames = [pixels for name, pixels in episode.frames if name == camera]
    if not frames:
        return np.zeros((64, 64 * _SHEET_COLUMNS, 3), np.uint8)
    chosen = np.linspace(0, len(frames) - 1, _SHEET_COLUMNS).round().astype(int)
    return np.concatenate([frames[index] for index in chosen], axis=1)


def _within(chunks: Iterable[ChunkSeen], episode: EpisodeSeen) -> list[ChunkSeen]:
    return [chunk for chunk in chunks
            if chunk.planned_ns >= episode.began_ns
            and (not episode.ended_ns or chunk.planned_ns < episode.ended_ns)]


def _rates(times_ns: Sequence[int], windows: Sequence[Window], origin_ns: int
           ) -> tuple[list[float], list[float]]:
    """Times [s] and rates [Hz] of a line with a step for each bin; NaN between windows.

    No bin is cut off: a window is divided into equal bins of about the wanted length.
    """
    events = np.sort(np.array(times_ns, np.int64))
    times_s: list[float] = []
    rates_hz: list[float] = []
    for begin_ns, end_ns in windows:
        bins = max(round((end_ns - begin_ns) / NS_PER_S / _BIN_S), 1)
        edges = np.linspace(begin_ns, end_ns, bins + 1).astype(np.int64)
        counts = np.diff(np.searchsorted(events, edges, 'right'))  # (first, last]
        for count, (begin, end) in zip(counts.tolist(), pairwise(edges.tolist()), strict=True):
            times_s += [(begin - origin_ns) / NS_PER_S, (end - origin_ns) / NS_PER_S]
            # A rate of zero has no place on a logarithmic axis: there the line has a gap.
            rates_hz += [count * NS_PER_S / (end - begin) if count else np.nan] * 2
        times_s.append(np.nan)
        rates_hz.append(np.nan)
    return times_s, rates_hz


def _origin_ns(recording: Recording) -> int:
    return recording.episodes[0].began_ns if recording.episodes else 0


def _axes(height_in: float) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(_WIDTH_IN, height_in), layout='constrained')
    return figure, axes


def _legend(figure: Figure, labels: Sequence[str], colours: Sequence[str]) -> None:
    """Above the axes, where it covers nothing."""
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours]
    figure.legend(handles, labels, loc='outside upper right', ncols=len(labels), frameon=False)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(alpha=0.25)
