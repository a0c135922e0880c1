"""The report of a recording: complete, self-contained, and honest about what was not seen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('matplotlib', reason='needs the extra `demo`')
pytest.importorskip('physis_ros.demo.scene', reason='needs the extra `demo`')

import matplotlib.pyplot as plt
from rich.console import Console

from physis_ros.demo import figures
from physis_ros.demo.cameras import Snapshot
from physis_ros.demo.measures import measure
from physis_ros.demo.recording import ChunkSeen, EpisodeSeen, Recording
from physis_ros.demo.report import shown_episode, write_report
from physis_ros.demo.scene import Scene
from physis_ros.demo.summary import rows, table, write_summary
from physis_ros.demo.video import film

MS = 1_000_000
STAGES = {'step 0 block 0': 140.0, 'step 3 block 7': 180.0}


@pytest.fixture
def recording() -> Recording:
    """Two seconds of one success."""
    recording = Recording()
    episode = EpisodeSeen(0, 7, 1000 * MS, 3000 * MS, 2.0, 0.0, True)
    for camera in ('front', 'wrist'):
        episode.frames.append((camera, np.full((64, 64, 3), 90, np.uint8)))
    recording.episodes.append(episode)
    for number in range(12):
        planned_ns = (1100 + 160 * number) * MS
        recording.add_chunk(ChunkSeen(
            1, number, planned_ns, planned_ns - 120 * MS, 0.01, 0.02, 0.03, True,
            planned_ns - 10 * MS, planned_ns + MS))
    for time_ns in range(1000 * MS, 3000 * MS, 10 * MS):
        recording.add_sensor('front', time_ns)
        recording.servo.append(time_ns)
        recording.measured.append((time_ns, (0.0,) * 6))
        recording.commanded.append((time_ns, (0.1,) * 6))
    return recording


def test_the_report_needs_no_other_file(recording: Recording, tmp_path: Path) -> None:
    shares: list[float] = []
    write_report(tmp_path / 'report.html', recording, rows(measure(recording), STAGES),
                 {'delay_ms': 80.0, 'plan': '<wave>'}, None, shares.append)
    text = (tmp_path / 'report.html').read_text()
    assert text.count('data:image/png;base64,') == 6
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert 'delay_ms=80.0' in text and 'plan=&lt;wave&gt;' in text
    assert shares[-1] == 1.0


def test_a_report_of_nothing_can_be_written(tmp_path: Path) -> None:
    recording = Recording()
    recording.episodes.append(EpisodeSeen(0, 0, 1, 2))
    write_report(tmp_path / 'report.html', recording, rows(measure(recording), {}), {}, None,
                 lambda share: None)
    assert 'not measured' in (tmp_path / 'report.html').read_text()


def test_the_table_fits_a_page_and_the_summary_is_json(recording: Recording, tmp_path: Path
                                                        ) -> None:
    measures = measure(recording)
    console = Console(width=120, record=True)
    console.print(table(measures, STAGES))
    assert '140 / 180 / 180 us' in console.export_text()
    write_summary(tmp_path / 'summary.json', measures, STAGES, {'seed': 7})
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert summary['age_ms']['p50'] == pytest.approx(121.0)
    assert summary['stage_us'] == STAGES
    write_summary(tmp_path / 'summary.json', measure(Recording()), {}, {})
    assert json.loads((tmp_path / 'summary.json').read_text())['chunk_hz'] is None


def test_the_frequencies_are_lines_of_whole_bins_with_gaps_between_episodes(
        recording: Recording) -> None:
    """Cameras at one rate and chunk and replan at another: six curves, of which none is hidden."""
    episode = EpisodeSeen(1, 8, 10_000 * MS, 15_000 * MS, 5.0, 0.0, True)
    recording.episodes.append(episode)
    for number in range(31):
        planned_ns = (10_050 + 160 * number) * MS
        recording.add_chunk(ChunkSeen(
            2, number, planned_ns, planned_ns - 120 * MS, 0.01, 0.02, 0.03, True,
            planned_ns - 10 * MS, planned_ns))
    for time_ns in range(3000 * MS, 15_000 * MS, 10 * MS):
        recording.add_sensor('front', time_ns)
        recording.servo.append(time_ns)
    recording.sensors['wrist'] = recording.sensors['joint_states'] = recording.sensors['front']
    figure = figures.frequencies(recording)
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == [
        'sensor: front', 'sensor: joint_states', 'sensor: wrist', 'chunk', 'replan', 'servo']
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == len(widths)
    for line in lines:
        rates_hz = np.array(line.get_ydata(), dtype=float)
        wanted_hz = 6.25 if line.get_label() in ('chunk', 'replan') else 100.0
        assert np.nanmin(rates_hz) > 0.9 * wanted_hz and np.nanmax(rates_hz) < 1.1 * wanted_hz
        assert np.isnan(rates_hz[:-1]).any(), 'a line across the reset'
        times_s = np.array(line.get_xdata(), dtype=float)
        assert np.nanmax(times_s) == pytest.approx(9.05 + 30 * 0.16)
    plt.close(figure)


def test_every_deadline_miss_is_drawn(recording: Recording) -> None:
    chunks = list(recording.chunks.values())
    chunks[2].arrived_ns = chunks[2].planned_ns + 30 * MS  # late
    chunks[4].arrived_ns = None
    chunks[5].rejected = True
    del recording.chunks[1, 7]
    del recording.chunks[1, 8]
    figure = figures.deadlines(recording)
    (axes,) = figure.axes
    on_time, late, _ = axes.get_lines()
    assert late.get_xydata() == pytest.approx(np.array([[0.42, 30.0]]))
    assert np.array(on_time.get_ydata()) == pytest.approx(-10.0)
    assert len(on_time.get_xydata()) == 7
    (lost,) = axes.collections
    assert [segment[0, 0] for segment in lost.get_segments()] == pytest.approx(
        [0.74, 0.9, (1.06 + 1.54) / 2])  # the last is between chunks 6 and 9
    assert measure(recording).deadline_misses == 5  # two of them in the gap
    plt.close(figure)


def test_no_legend_covers_data(recording: Recording) -> None:
    for draw in (figures.ages, figures.deadlines, figures.frequencies, figures.joints,
                 lambda seen: figures.timeline(seen, seen.episodes[0])):
        figure = draw(recording)
        figure.canvas.draw()
        legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
        assert legends
        for legend in legends:
            for axes in figure.axes:
                assert not legend.get_window_extent().overlaps(axes.get_window_extent())
        plt.close(figure)


def test_the_sheet_says_how_many_episodes_it_shows(recording: Recording) -> None:
    for number in range(1, 13):
        episode = EpisodeSeen(number, 7, 1000 * MS, 3000 * MS)
        episode.frames.append(('front', np.full((64, 64, 3), 90, np.uint8)))
        recording.episodes.append(episode)
    figure = figures.contact_sheet(recording.episodes)
    assert figure.get_suptitle() == '10 of 13 episodes'
    plt.close(figure)


def test_the_slowest_stage_is_explained(recording: Recording) -> None:
    measures = measure(recording)
    first = {row[0]: row[2] for row in rows(measures, {**STAGES, 'step 0 block 0': 4500.0})}
    assert 'slowest: step 0 block 0, which also encodes the images' in first[
        'stage, fastest / median / slowest']
    assert '--output forward_command' in first['servo']
    other = {row[0]: row[2] for row in rows(measures, STAGES)}
    assert other['stage, fastest / median / slowest'].endswith('slowest: step 3 block 7')


def test_the_shown_episode_is_a_success_if_there_is_one(recording: Recording) -> None:
    success = recording.episodes[0]
    recording.episodes.append(EpisodeSeen(1, 8, 3100 * MS, 4000 * MS))
    recording.episodes.append(EpisodeSeen(2, 9, 4100 * MS))
    assert shown_episode(recording) is success
    success.success = False
    assert shown_episode(recording) is recording.episodes[1]
    assert shown_episode(Recording()) is None


def test_an_episode_is_filmed_from_its_states(recording: Recording, tmp_path: Path) -> None:
    scene = Scene()
    scene.reset(7)
    episode = recording.episodes[0]
    episode.states.extend((time_ns, Snapshot.of(scene).to_list()) for time_ns in range(3))
    scene.close()
    made = film(episode, tmp_path, lambda share: None)
    assert made is not None and made.stat().st_size > 1000
    episode.states.clear()
    assert film(episode, tmp_path, lambda share: None) is None


@pytest.mark.parametrize(('ratio', 'told'), [(0.94, True), (0.96, False)])
def test_a_run_that_is_late_is_told_what_helps(
        recording: Recording, ratio: float, told: bool) -> None:
    measures = replace(measure(recording), on_time_ratio=ratio)
    texts = {row[0]: row[2] for row in rows(measures, STAGES)}
    assert ('--delay-ms' in texts['on time']) == told
