"""Largest steps of position and velocity where chunks meet, for each handover strategy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from physis_core.delivery.buffer import OutputBuffer
from physis_core.delivery.chunk import Floats, PlannedChunk, finite_difference
from physis_core.delivery.handover import STRATEGIES, make_handover
from physis_core.delivery.limits import JointLimits
from physis_core.delivery.servo import ServoPlayer
from physis_core.errors import InputError
from physis_core.units import NS_PER_MS, NS_PER_S

LATENCIES = (0, 1, 2, 4)
_CONTROL_NS = 20 * NS_PER_MS
_PERIOD_POINTS = 8
_JOINTS = 6
_BEGIN_NS = 10 * NS_PER_S
_FAR_NS = 3600 * NS_PER_S


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--recording', type=Path, help='chunks recorded by wam_node (parameter '
                        '`record`); default: a seeded motion with the errors of a model')
    parser.add_argument('--chunks', type=int, default=200, help='length of the seeded motion')
    parser.add_argument('--horizon', type=int, default=16, help='control points of its chunks')
    parser.add_argument('--jitter-ms', type=float, default=25.0,
                        help='standard deviation of the response [ms]')
    parser.add_argument('--servo-hz', type=float, default=250.0, help='rate of the servo [Hz]')
    parser.add_argument('--seed', type=int, default=0, help='of motion and jitter')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
    """Play the stream with each strategy and latency; print the largest steps."""
    if args.chunks < 2 or args.horizon < 2:
        raise InputError(f'--chunks {args.chunks} --horizon {args.horizon}: both are at least 2')
    recorded = None if args.recording is None else read_recording(args.recording)
    rows = [_measure(strategy, latency, args, recorded)
            for latency in LATENCIES for strategy in STRATEGIES]
    result = {'source': str(args.recording or f'seed {args.seed}'), 'servo_hz': args.servo_hz,
              'jitter_ms': args.jitter_ms, 'rows': rows}
    print(json.dumps(result, indent=1)) if args.json else _show(rows)
    return 0


def read_recording(path: Path) -> list[PlannedChunk]:
    """The chunks of the longest epoch that wam_node recorded.

    Raises:
        InputError: no such file, or no chunks in it.
    """
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f'recording {path} cannot be read ({error}); record one with the '
                         'parameter `record` of wam_node') from error
    chunks: dict[int, list[PlannedChunk]] = {}
    for line in lines:
        positions = np.array(line.pop('positions'))
        chunk = PlannedChunk(**line, positions=positions, velocities=finite_difference(
            positions, line['period_ns']))
        chunks.setdefault(chunk.epoch, []).append(chunk)
    if not chunks:
        raise InputError(f'recording {path} has no chunks; record a run that makes some')
    return [replace(chunk, epoch=1) for chunk in max(chunks.values(), key=len)]


def _seeded(args: argparse.Namespace, latency: int) -> Iterator[PlannedChunk]:
    """A smooth motion, and chunks that foresee it with errors that grow with what they have not
    seen: `latency` chunks of delay and the distance into the future."""
    rng = np.random.default_rng(args.seed)
    frequencies_hz = rng.uniform(0.1, 0.6, (3, _JOINTS))
    phases = rng.uniform(0, 2 * np.pi, (3, _JOINTS))
    for chunk in range(args.chunks):
        times_s = 0.02 * (chunk * _PERIOD_POINTS + np.arange(args.horizon))[:, None, None]
        motion = 0.3 * np.sin(2 * np.pi * frequencies_hz * times_s + phases).sum(1)
        unseen_s = 0.16 * latency + 0.02 * np.arange(args.horizon)[:, None]
        error = rng.normal(0, 0.03, _JOINTS) * (0.2 + unseen_s) + rng.normal(
            0, 0.002, motion.shape)
        yield _planned(chunk, motion + error)


def _planned(chunk: int, positions: Floats) -> PlannedChunk:
    due_ns = _BEGIN_NS + chunk * _PERIOD_POINTS * _CONTROL_NS
    return PlannedChunk(
        1, chunk, due_ns, _CONTROL_NS, due_ns + len(positions) * _CONTROL_NS, due_ns, due_ns,
        due_ns, due_ns, positions, finite_difference(positions, _CONTROL_NS))


def _measure(strategy: str, latency: int, args: argparse.Namespace,
             recorded: list[PlannedChunk] | None) -> dict[str, Any]:
    rng = np.random.default_rng(args.seed + 1)
    chunks = recorded if recorded is not None else list(_seeded(args, latency))
    period_ns = chunks[1].due_ns - chunks[0].due_ns
    # The lead covers the mean response; what the jitter adds makes a chunk late.
    arrivals = sorted(
        (chunk.due_ns - round(2.0 * args.jitter_ms * NS_PER_MS)
         + round(rng.normal(0.0, args.jitter_ms) * NS_PER_MS), number)
        for number, chunk in enumerate(chunks))
    handover = make_handover(strategy, blend_ns=60 * NS_PER_MS, decay=0.5, prefix_points=2)
    buffer = OutputBuffer(handover, period_ns, _FAR_NS)
    joints = chunks[0].positions.shape[1]
    player = ServoPlayer(JointLimits.none(joints, 20.0), 0.06, 0.1, 1.0 / args.servo_hz)
    for side in (buffer, player):
        side.begin_epoch(1)
    unknown = np.full(joints, np.nan)
    tick_ns = round(NS_PER_S / args.servo_hz)
    commands: list[Floats] = []
    jumps = [0.0]
    for now_ns in range(chunks[0].due_ns - period_ns, chunks[-1].due_ns, tick_ns):
        while arrivals and arrivals[0][0] <= now_ns:
            finished_ns, number = arrivals.pop(0)
            chunk = replace(chunks[number], finished_ns=finished_ns)
            delivery = buffer.offer(chunk, now_ns)
            if delivery.chunk is not None:
                jumps.append(_jump(player, delivery.chunk))
                player.accept(delivery.chunk, unknown)
        command = player.step(now_ns)
        if command is not None:
            commands.append(command.position)
    positions = np.array(commands)
    velocities = np.diff(positions, axis=0) * args.servo_hz
    return {
        'strategy': strategy, 'latency_chunks': latency,
        'plan_position_jump_rad': max(jumps),
        'servo_position_step_rad': float(np.abs(np.diff(positions, axis=0)).max()),
        'servo_velocity_step_rad_s': float(np.abs(np.diff(velocities, axis=0)).max()),
        'late': buffer.counts.missed, 'dropped': buffer.counts.dropped,
        'underruns': player.underruns}


def _jump(player: ServoPlayer, chunk: PlannedChunk) -> float:
    """How far the new chunk's begin is from where the plan so far would have been then."""
    before = player.planned(chunk.due_ns)
    return 0.0 if before is None else float(np.abs(before - chunk.positions[0]).max())


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(title='largest steps where chunks meet')
    for column in ('latency [chunks]', 'strategy', 'plan jump [rad]', 'servo step [rad]',
                   'servo velocity step [rad/s]', 'late', 'dropped', 'underruns'):
        table.add_column(column, justify='right')
    for row in rows:
        table.add_row(
            str(row['latency_chunks']), row['strategy'], f'{row["plan_position_jump_rad"]:.4f}',
            f'{row["servo_position_step_rad"]:.5f}', f'{row["servo_velocity_step_rad_s"]:.4f}',
            str(row['late']), str(row['dropped']), str(row['underruns']))
    Console(width=110).print(table)
