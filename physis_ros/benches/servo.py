"""How steady the servo's beat is, against a plain rclpy timer, beside a working engine."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from physis_core.delivery.chunk import PlannedChunk
from physis_core.delivery.ring import RingFormat, RingReader, RingWriter
from physis_core.errors import InputError, PhysisError
from physis_core.units import NS_PER_MS, NS_PER_S
from physis_ros.benches.surroundings import surroundings
from physis_ros.demo.processes import ProcessGroup
from physis_ros.deployment import NodeProcess, policy_processes
from physis_ros.ring_name import ring_name

_CAMERAS = ('front', 'wrist')
_START_S = 120.0
_LOOK_S = 0.2
_CHUNKS_FIRST = 3
_CONTROL_HZ = 50.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--hz', type=float, default=1000.0, help='rate of the beat [Hz]')
    parser.add_argument('--seconds', type=float, default=20.0, help='length of each measurement')
    parser.add_argument('--load', choices=('engine', 'none'), default='engine',
                        help='engine: wam_node with its workers and 640x480 cameras at 30 Hz')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
    """Measure servo with FIFO, servo without, and timer, one after the other; print."""
    if not 50.0 <= args.hz <= 1000.0:
        raise InputError(f'--hz is {args.hz:g}; a servo runs at 50 to 1000 Hz')
    if args.seconds <= 0:
        raise InputError(f'--seconds is {args.seconds:g}; it must be positive')
    with ExitStack() as stack:
        group = stack.enter_context(surroundings(_load() if args.load == 'engine' else ()))
        if args.load == 'engine':
            _wait_for_chunks(group)
        else:
            stack.enter_context(_quiet_ring(args.seconds))
        found = {
            'servo_fifo': _measured('servo', args, 80),
            'servo': _measured('servo', args, 0),
            'rclpy_timer': _measured('timer', args, 0)}
        group.check()
    result = {
        'hz': args.hz, 'seconds': args.seconds, 'load': args.load, **found,
        'p99_error_timer_over_servo':
            found['rclpy_timer']['error_ms']['p99'] / found['servo_fifo']['error_ms']['p99']}
    print(json.dumps(result, indent=1)) if args.json else _show(result)
    return 0


def _load() -> tuple[NodeProcess, ...]:
    sensors = NodeProcess(
        'sensors', 'sensors', 'physis_ros.benches.sensors_node',
        parameters={'cameras': list(_CAMERAS), 'joint_hz': 100.0, 'joints': [
            'shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll',
            'gripper']})
    return sensors, *(process for process in policy_processes() if process.node == 'wam_node')


def _wait_for_chunks(group: ProcessGroup) -> None:
    """Wait until the engine hands chunks to the ring."""
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        group.check()
        ring = RingReader.open(ring_name('', ''))
        if ring is not None:
            control = ring.control()
            ring.close()
            if control is not None and control.written > _CHUNKS_FIRST:
                return
        time.sleep(_LOOK_S)
    raise PhysisError(f'the engine made no chunks within {_START_S:g} s')


@contextmanager
def _quiet_ring(seconds: float) -> Iterator[None]:
    """A ring that holds one chunk of rest, longer than all measurements."""
    points = round(_CONTROL_HZ * (3 * seconds + _START_S))
    joints = tuple('abcdef')
    now_ns = time.monotonic_ns()
    period_ns = round(NS_PER_S / _CONTROL_HZ)
    rest = np.zeros((points, len(joints)))
    ring = RingWriter(ring_name('', ''), RingFormat(joints, points))
    ring.tell(epoch=1, active=True, stop='', heartbeat_ns=now_ns)
    ring.write(PlannedChunk(1, 0, now_ns, period_ns, now_ns + points * period_ns, now_ns, now_ns,
                            now_ns, now_ns, rest, rest), rest[0])
    try:
        yield
    finally:
        ring.close()


def _measured(kind: str, args: argparse.Namespace, priority: int) -> dict[str, Any]:
    completed = subprocess.run(
        [sys.executable, '-m', 'physis_ros.benches.servo_subject', kind, str(args.hz),
         str(args.seconds), '--ros-args', '-p', f'servo_hz:={args.hz}', '-p',
         f'real_time.priority:={priority}'],
        capture_output=True, text=True, timeout=args.seconds + _START_S)
    if completed.returncode:
        raise PhysisError(f'{kind} failed: {completed.stderr.strip()[-500:]}')
    return _summary(json.loads(completed.stdout.strip().splitlines()[-1]), args.hz)


def _summary(raw: dict[str, Any], hz: float) -> dict[str, Any]:
    woken_ns = np.array(raw.pop('woken_ns'), dtype=np.int64)
    if len(woken_ns) < 2:
        raise PhysisError('the beat under test did not beat: no ring was there to play from')
    periods_ms = np.diff(woken_ns) / NS_PER_MS
    errors_ms = np.abs(periods_ms - 1e3 / hz)
    return {
        'rate_hz': float(1e3 * len(periods_ms) / periods_ms.sum()),
        'period_ms': _quantiles(periods_ms), 'error_ms': _quantiles(errors_ms), **raw}


def _quantiles(values: np.ndarray) -> dict[str, float]:
    p50, p99, p999 = np.percentile(values, (50, 99, 99.9))
    return {'p50': float(p50), 'p99': float(p99), 'p99.9': float(p999),
            'max': float(values.max())}


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f'{result["hz"]:g} Hz for {result["seconds"]:g} s, load: {result["load"]}')
    for column in ('', 'rate [Hz]', 'period p50', 'p99', 'p99.9', escape('max [ms]'), 'missed',
                   'scheduling'):
        table.add_column(column, justify='right')
    for name in ('servo_fifo', 'servo', 'rclpy_timer'):
        row = result[name]
        table.add_row(
            name, f'{row["rate_hz"]:.1f}', *(f'{value:.3f}' for value in row['period_ms'].values()),
            str(row['missed']), 'SCHED_FIFO' if row['fifo'] else 'normal')
    console = Console()
    console.print(table)
    console.print(f'p99 error of the timer over that of the servo: '
                  f'{result["p99_error_timer_over_servo"]:.1f}')
