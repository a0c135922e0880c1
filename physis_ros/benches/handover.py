"""Largest steps of position and velocity where chunks meet, for each handover strategy.

A recorded stream of chunks is delivered with jitter to the output buffer and played by the servo
(without limits, so that what is seen is the strategy's) under a virtual clock. The robot of the
recording followed the chunks as they were: what the model would have made of another motion is not
shown. The model of the shipped streams was not told what had been promised, so `prefix` shows a
promise that is kept, and after it the disagreement that a model trained for it would avoid.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from physis_core.delivery.buffer import OutputBuffer
from physis_core.delivery.chunk import Floats, PlannedChunk
from physis_core.delivery.handover import STRATEGIES, make_handover
from physis_core.delivery.limits import JointLimits
from physis_core.delivery.servo import ServoPlayer
from physis_core.delivery.timeline import Timeline
from physis_core.errors import InputError
from physis_core.units import NS_PER_MS, NS_PER_S
from physis_ros.benches.recorded_streams import (
    SOURCE,
    RecordedStream,
    read_recording,
    shipped_streams,
)

_FAR_NS = 3600 * NS_PER_S
_PREFIX_POINTS = 2
# The lead covers the mean response and so many standard deviations of it; more makes a chunk late.
_COVERED = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--recording', type=Path, nargs='+', metavar='PATH',
                        help='sessions recorded by wam_node (parameter `record`), or their '
                        f'chunks.jsonl; default: {SOURCE}')
    parser.add_argument('--jitter-ms', type=float, default=25.0,
                        help='standard deviation of the response [ms]')
    parser.add_argument('--servo-hz', type=float, default=250.0, help='rate of the servo [Hz]')
    parser.add_argument('--seed', type=int, default=0, help='of the jitter')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
    """Play each stream with each strategy; print the largest steps."""
    if args.jitter_ms < 0:
        raise InputError(f'--jitter-ms is {args.jitter_ms:g}; it is at least 0')
    if not 50 <= args.servo_hz <= 1000:
        raise InputError(f'--servo-hz is {args.servo_hz:g}; a servo runs at 50 to 1000 Hz')
    streams = ([read_recording(path) for path in args.recording] if args.recording
               else shipped_streams())
    rows = [_measure(stream, strategy, args) for stream in streams for strategy in STRATEGIES]
    result = {'source': ', '.join(map(str, args.recording)) if args.recording else SOURCE,
              'servo_hz': args.servo_hz, 'jitter_ms': args.jitter_ms, 'rows': rows}
    print(json.dumps(result, indent=1)) if args.json else _show(result)
    return 0


@dataclass
class _Seen:
    """What was measured: numbers of each boundary, and of all that lies between boundaries."""

    jumps_rad: list[float] = field(default_factory=list)
    steps_rad: list[float] = field(default_factory=list)
    steps_rad_s: list[float] = field(default_factory=list)
    between_rad: list[float] = field(default_factory=lambda: [0.0])
    between_rad_s: list[float] = field(default_factory=lambda: [0.0])
    late: int = 0
    dropped: int = 0
    underruns: int = 0


def _measure(stream: RecordedStream, strategy: str, args: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(args.seed)
    seen = _Seen()
    for chunks in stream.epochs:
        jitter_ns = np.rint(rng.normal(-_COVERED, 1.0, len(chunks)) * args.jitter_ms * NS_PER_MS)
        _play([replace(chunk, epoch=1, finished_ns=chunk.due_ns + int(late_ns))
               for chunk, late_ns in zip(chunks, jitter_ns, strict=True)],
              stream.period_ns, strategy, args.servo_hz, seen)
    return {
        'strategy': strategy, 'latency_chunks': stream.latency_chunks,
        'lead_ms': round(stream.lead_ms, 1), 'period_ms': stream.period_ns / NS_PER_MS,
        'overlap_points': stream.overlap_points, 'boundaries': len(seen.steps_rad),
        'plan_position_jump_rad': max(seen.jumps_rad),
        'plan_position_jump_p50_rad': float(np.median(seen.jumps_rad)),
        'servo_position_step_rad': max(seen.steps_rad),
        'servo_position_step_p50_rad': float(np.median(seen.steps_rad)),
        'servo_velocity_step_rad_s': max(seen.steps_rad_s),
        'servo_velocity_step_p50_rad_s': float(np.median(seen.steps_rad_s)),
        'between_position_step_rad': max(seen.between_rad),
        'between_velocity_step_rad_s': max(seen.between_rad_s),
        'late': seen.late, 'dropped': seen.dropped, 'underruns': seen.underruns}


def _play(chunks: Sequence[PlannedChunk], period_ns: int, strategy: str, servo_hz: float,
          seen: _Seen) -> None:
    """Deliver the chunks when they are finished, and play them."""
    joints = chunks[0].positions.shape[1]
    buffer = OutputBuffer(
        make_handover(strategy, blend_ns=60 * NS_PER_MS, decay=0.5, prefix_points=_PREFIX_POINTS),
        period_ns, _FAR_NS)
    player = ServoPlayer(JointLimits.none(joints, 20.0), 0.06, 0.1, 1.0 / servo_hz)
    for side in (buffer, player):
        side.begin_epoch(1)
    unknown = np.full(joints, np.nan)
    coming = sorted(chunks, key=lambda chunk: chunk.finished_ns, reverse=True)
    positions: list[Floats] = []
    boundaries: list[int] = []
    tick_ns = round(NS_PER_S / servo_hz)
    for now_ns in range(chunks[0].due_ns - period_ns, chunks[-1].due_ns + period_ns, tick_ns):
        while coming and coming[-1].finished_ns <= now_ns:
            chunk = coming.pop()
            foreseen = _foreseen(buffer.plan, chunk.due_ns)
            delivered = buffer.offer(chunk, now_ns).chunk
            if delivered is None:
                continue
            if foreseen is not None:
                seen.jumps_rad.append(float(np.abs(foreseen - delivered.positions[0]).max()))
            player.accept(delivered, unknown)
        command = player.step(now_ns)
        if command is None:
            continue
        if command.effective is not None and positions:
            boundaries.append(len(positions))
        positions.append(command.position)
    _take_steps(np.array(positions), boundaries, round(chunks[0].period_ns / tick_ns), servo_hz,
                seen)
    seen.late += buffer.counts.missed
    seen.dropped += buffer.counts.dropped
    seen.underruns += player.underruns


def _foreseen(plan: Timeline, time_ns: int) -> Floats | None:
    """Where the plan so far would be at a time, if need be at its last speed; None: no plan."""
    sample = plan.sample(time_ns) or plan.last_before(time_ns)
    if sample is None:
        return None
    return np.asarray(sample.position + sample.velocity * (time_ns - sample.time_ns) * 1e-9)


def _take_steps(positions: Floats, boundaries: Sequence[int], reach: int, servo_hz: float,
                seen: _Seen) -> None:
    """Steps from tick to tick: the largest within ``reach`` ticks of each boundary, and others."""
    steps = np.abs(np.diff(positions, axis=0)).max(axis=1)
    speeds = np.diff(positions, axis=0) * servo_hz
    speed_steps = np.abs(np.diff(speeds, axis=0)).max(axis=1)
    between = np.ones(len(speed_steps), bool)
    for boundary in boundaries:
        # Step i leads to position i + 1; a change of speed belongs to the step that it leads to.
        near = slice(max(boundary - reach - 1, 0), boundary + reach)
        seen.steps_rad.append(float(steps[near].max()))
        near = slice(max(boundary - reach - 2, 0), boundary + reach - 1)
        seen.steps_rad_s.append(float(speed_steps[near].max()))
        between[near] = False
    if between.any():
        seen.between_rad.append(float(steps[1:][between].max()))
        seen.between_rad_s.append(float(speed_steps[between].max()))


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = ['latency: from letting a chunk in to its first control point, in chunk periods']
    if any(row['overlap_points'] == 0 for row in rows):
        notes.append('chunks do not overlap there, so replace, ensemble and prefix are the same')
    return notes


def _show(result: dict[str, Any]) -> None:
    table = Table(title='steps where chunks meet, largest (median of all boundaries)',
                  caption='\n'.join((result['source'], *_notes(result['rows']))))
    for column in ('latency [chunks]', 'strategy', 'plan jump [rad]', 'servo step [rad]',
                   'servo velocity step [rad/s]', 'between [rad/s]', 'late [1]', 'dropped [1]',
                   'underruns [1]'):
        table.add_column(column, justify='right')
    for row in result['rows']:
        table.add_row(
            f'{row["latency_chunks"]:g}', row['strategy'],
            f'{row["plan_position_jump_rad"]:.4f} ({row["plan_position_jump_p50_rad"]:.4f})',
            f'{row["servo_position_step_rad"]:.4f} ({row["servo_position_step_p50_rad"]:.4f})',
            f'{row["servo_velocity_step_rad_s"]:.2f} ({row["servo_velocity_step_p50_rad_s"]:.2f})',
            f'{row["between_velocity_step_rad_s"]:.2f}', str(row['late']), str(row['dropped']),
            str(row['underruns']))
    Console(width=120).print(table)
