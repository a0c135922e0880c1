"""What taking in cameras and joint states costs, and how much of them arrives."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from physis_core.errors import InputError, PhysisError
from physis_ros.benches.surroundings import surroundings
from physis_ros.deployment import NodeProcess

_START_S = 120.0
_JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll', 'gripper')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--cameras', type=int, default=3, help='number of cameras')
    parser.add_argument('--width', type=int, default=640, help='of an image [pixels]')
    parser.add_argument('--height', type=int, default=480, help='of an image [pixels]')
    parser.add_argument('--camera-hz', type=float, default=30.0, help='of each camera [Hz]')
    parser.add_argument('--joint-hz', type=float, default=500.0, help='of joint states [Hz]')
    parser.add_argument('--seconds', type=float, default=10.0, help='length of the measurement')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    if args.cameras < 1 or min(args.width, args.height) < 1 or args.seconds <= 0:
        raise InputError('--cameras, --width, --height and --seconds must be positive')
    cameras = [f'camera{index}' for index in range(args.cameras)]
    sensors = NodeProcess(
        'sensors', 'sensors', 'physis_ros.benches.sensors_node', parameters={
            'cameras': cameras, 'width': args.width, 'height': args.height,
            'camera_hz': args.camera_hz, 'joint_hz': args.joint_hz, 'joints': list(_JOINTS)})
    with surroundings((sensors,)) as group:
        completed = subprocess.run(
            [sys.executable, '-m', 'physis_ros.benches.ingest_subject', str(args.seconds),
             '--ros-args', '-p', f'camera_names:=[{", ".join(cameras)}]'],
            capture_output=True, text=True, timeout=args.seconds + _START_S)
        group.check()
    if completed.returncode:
        raise PhysisError(f'the ingest failed: {completed.stderr.strip()[-500:]}')
    result = json.loads(completed.stdout.strip().splitlines()[-1])
    print(json.dumps(result, indent=1)) if args.json else _show(result)
    return 0


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f'ingest over {result["seconds"]:.1f} s')
    for column in ('source', 'delivered', 'expected', 'share'):
        table.add_column(column, justify='right')
    for name, source in result['sources'].items():
        table.add_row(name, str(source['delivered']), str(source['expected']),
                      f'{source["delivered_share"]:.3f}')
    age = result['capture_to_observation_ms']
    console = Console()
    console.print(table)
    console.print(
        f'{result["cpu_percent"]:.1f} % of a core; {result["observations_hz"]:.1f} observation/s; '
        f'capture to observation p50 {age["p50"]:.2f} ms, p99 {age["p99"]:.2f} ms')
