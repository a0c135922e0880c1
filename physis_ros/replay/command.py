"""Play a recording (rosbag2, MCAP) to the policy; report ages, frequencies and misses."""

from __future__ import annotations

import argparse
import json
import math
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rclpy.time import Time
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from physis_core.errors import InputError
from physis_core.units import NS_PER_S
from physis_ros.benches.surroundings import surroundings
from physis_ros.demo.calls import Calls, NoAnswer
from physis_ros.deployment import policy_processes
from physis_ros.msg import StreamReport
from physis_ros.replay.bag import Bag
from physis_ros.replay.player import Player

_START_S = 180.0
_DISCOVERY_S = 3.0
_TAIL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('bag', type=Path,
                        help='folder of the recording, or of a session of wam_node')
    parser.add_argument('--config', type=Path, help='parameters; default: config/wam.yaml')
    parser.add_argument('--map', nargs=2, action='append', default=[],
                        metavar=('RECORDED', 'TOPIC'), help='publish a recorded topic as another')
    parser.add_argument('--rate', type=float, default=1.0, help='2 plays twice as fast')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
    """Play once and print what the policy reported."""
    if args.rate <= 0:
        raise InputError(f'--rate is {args.rate:g}; it must be positive')
    with closing(Bag(args.bag, dict(args.map))) as bag:
        with surroundings(policy_processes(args.config)) as group:
            reports = _replay(bag, args.rate, group.check)
        result = {'bag': str(args.bag), 'duration_s': bag.duration_s,
                  'recorded': bag.expected(), **_summary(reports)}
    print(json.dumps(result, indent=1)) if args.json else _show(result)
    return 0


def _replay(bag: Bag, rate: float, check: Any) -> list[StreamReport]:
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    player = Player(bag, rate)
    executor = SingleThreadedExecutor()
    executor.add_node(player)
    calls = Calls(player, executor, check)
    reports: list[StreamReport] = []
    player.create_subscription(StreamReport, '/wam_node/stream_report', reports.append, 50)
    try:
        # A report comes only from an active policy.
        calls.wait_until(lambda: bool(reports) and player.connected(), _START_S, 'the policy')
        # An instruction is said once: whoever is to hear it has to be known before.
        with suppress(NoAnswer):
            calls.wait_until(lambda: not player.unheard(), _DISCOVERY_S, 'listeners')
        for topic in player.unheard():
            player.get_logger().warning(player.why_unheard(topic))
        reports.clear()
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task('replay', total=1.0)
            player.play(calls.spin, lambda share: progress.update(bar, completed=share))
        if not reports:  # a short recording: its first report is still to come
            calls.spin(_TAIL_S)
        return reports
    finally:
        executor.shutdown()
        player.destroy_node()
        rclpy.try_shutdown()


def _summary(reports: list[StreamReport]) -> dict[str, Any]:
    """What was reported while chunks were made; counts are those of the end.

    The first windows are left out where there are others: they begin before the recording does.
    """
    running = [report for report in reports if report.chunk_hz > 0]
    if not running:
        raise InputError('the policy made no chunk from this recording: it needs all of its '
                         'inputs; compare its topics with config/wam.yaml, and use --map')
    begin_s = _seconds(running[0])
    running = [report for report in running
               if _seconds(report) - begin_s >= report.window_s] or running
    last = reports[-1]
    names = list(running[0].sensor_names)
    sensors = [[report.sensor_hz[index] for report in running] for index in range(len(names))]
    return {
        'sensor_hz': {name: _mean(rates) for name, rates in zip(names, sensors, strict=True)},
        'replan_hz': _mean([report.replan_hz for report in running]),
        'chunk_hz': _mean([report.chunk_hz for report in running]),
        'servo_hz': _mean([report.servo_hz for report in running]),
        'age_ms': {
            'p50': _mean([report.age_p50_s for report in running], 1e3),
            'p99': _largest([report.age_p99_s for report in running], 1e3),
            'max': _largest([report.age_max_s for report in running], 1e3),
            **{part: _mean([getattr(report, f'age_{part}_s') for report in running], 1e3)
               for part in ('capture', 'queue', 'response', 'handoff')}},
        'on_time_ratio': _mean([report.on_time_ratio for report in running]),
        'chunks': last.chunks_delivered, 'deadline_misses': last.deadline_misses,
        'chunks_dropped': last.chunks_dropped, 'underruns': last.underruns}


def _seconds(report: StreamReport) -> float:
    return float(Time.from_msg(report.header.stamp).nanoseconds) / NS_PER_S


def _known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(values: list[float], scale: float = 1.0) -> float | None:
    known = _known(values)
    return scale * sum(known) / len(known) if known else None


def _largest(values: list[float], scale: float) -> float | None:
    known = _known(values)
    return scale * max(known) if known else None


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f'{result["bag"]}: {result["duration_s"]:.1f} s')
    table.add_column('what')
    table.add_column('value', justify='right')
    for name, hz in result['sensor_hz'].items():
        table.add_row(f'sensor {name} [Hz]', _number(hz))
    for name in ('replan_hz', 'chunk_hz', 'servo_hz'):
        table.add_row(f'{name.removesuffix("_hz")} [Hz]', _number(result[name]))
    for name, value in result['age_ms'].items():
        table.add_row(escape(f'age {name} [ms]'), _number(value))
    for name in ('on_time_ratio', 'chunks', 'deadline_misses', 'chunks_dropped', 'underruns'):
        table.add_row(name.replace('_', ' '), _number(result[name]))
    Console().print(table)


def _number(value: float | int | None) -> str:
    return '-' if value is None else f'{value:.4g}'
