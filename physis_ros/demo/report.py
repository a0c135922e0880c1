"""The report of a run: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from physis_ros.demo import figures
from physis_ros.demo.recording import EpisodeSeen, Recording
from physis_ros.demo.summary import Row

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem }
table { border-collapse: collapse; width: 100% } td { padding: .25rem .6rem; border-bottom:
       1px solid #e4e4e4 } td:nth-child(2) { text-align: right; white-space: nowrap;
       font-variant-numeric: tabular-nums } td:nth-child(3) { color: #666 }
img, video { max-width: 100% } p { color: #444 } code { background: #f3f3f3; padding: 0 .25em }
"""

_SECTIONS: tuple[tuple[str, str], ...] = (
    ('Age of actions',
     'How old the oldest input of a chunk was when the chunk took effect at the controller. '
     'Waiting (handoff) is planned: the chunk is ready before its time comes.'),
    ('Deadline misses',
     'When each chunk reached the controller, against its planned start. Above the line it was '
     'late: its first points were past. A vertical line stands for a chunk that was refused, or '
     'for one or more that never came.'),
    ('The four frequencies',
     'They differ, and none follows from another. Sensors deliver more than is used; replan says '
     'how often something newly seen changed the motion; chunk, how often the model delivered; '
     'servo, how often a control point was played. Only replan is a closed-loop frequency. '
     'Lines end where an episode ends; while the scene is reset, nothing is counted. Where '
     'curves lie on one another, the wider one is below.'),
    ('Chunk timeline',
     'From the capture of the oldest input to the end of play. Chunks overlap: while one is '
     'played, the next is computed from a newer observation.'),
    ('Joint commands and measured positions', 'What the controller asked of the arm, and what the '
     'arm did. A gripper that is commanded further than it gets has closed on the cube.'),
    ('What the policy saw', 'Frames of both cameras (front above, wrist below) as they were '
     'published, evenly spaced over each episode; of a long run the first episodes.'),
)


def write_report(path: Path, recording: Recording, rows: Sequence[Row],
                 settings: Mapping[str, Any], video: Path | None,
                 progress: Callable[[float], None]) -> None:
    """Write the report; `progress` is told the share that is done, from 0 to 1."""
    drawings = _drawings(recording)
    sections = []
    for done, ((title, text), draw) in enumerate(zip(_SECTIONS, drawings, strict=True), 1):
        sections.append(f'<h2>{title}</h2><p>{text}</p>{_image(draw())}')
        progress(done / len(_SECTIONS))
    path.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Physis demo</title>'
        f'<style>{_STYLE}</style><h1>Physis demo</h1>'
        f'<p>Settings: {_settings(settings)}. Every number below was measured on the topics, at '
        'the side that receives the commands.</p>'
        f'{_table(rows)}{_video(video)}{"".join(sections)}</html>\n')


def shown_episode(recording: Recording) -> EpisodeSeen | None:
    """The episode worth showing: the first success, else the last that ended."""
    ended = [episode for episode in recording.episodes if episode.ended_ns]
    successes = [episode for episode in ended if episode.success]
    return next(iter(successes), ended[-1] if ended else None)


def _drawings(recording: Recording) -> list[Callable[[], Figure]]:
    episode = shown_episode(recording) or EpisodeSeen(0, 0, 0)
    return [
        lambda: figures.ages(recording),
        lambda: figures.deadlines(recording),
        lambda: figures.frequencies(recording),
        lambda: figures.timeline(recording, episode),
        lambda: figures.joints(recording),
        lambda: figures.contact_sheet(recording.episodes),
    ]


def _table(rows: Sequence[Row]) -> str:
    body = ''.join(
        '<tr>' + ''.join(f'<td>{html.escape(cell)}</td>' for cell in row) + '</tr>'
        for row in rows)
    return f'<table>{body}</table>'


def _settings(settings: Mapping[str, Any]) -> str:
    return ', '.join(f'<code>{html.escape(f"{name}={value}")}</code>'
                     for name, value in settings.items())


def _video(video: Path | None) -> str:
    if video is None:
        return ''
    data = base64.b64encode(video.read_bytes()).decode()
    if video.suffix == '.gif':
        return f'<h2>An episode</h2><img src="data:image/gif;base64,{data}">'
    return ('<h2>An episode</h2><video controls loop muted '
            f'src="data:video/mp4;base64,{data}"></video>')


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=110)
    plt.close(figure)
    return f'<img src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
