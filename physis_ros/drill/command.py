"""Provoke every fault on purpose and see that the robot comes to no harm."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rich.console import Console
from rich.table import Table

from physis_ros.benches.surroundings import surroundings
from physis_ros.demo.calls import Calls
from physis_ros.demo.processes import ProcessGroup
from physis_ros.deployment import policy_processes
from physis_ros.drill.exercise import Bounds, Exercise, Outcome
from physis_ros.drill.faults import FAULTS, Fault, Scene, chosen_faults
from physis_ros.drill.robot import DrillRobot

_FROZEN_MS = 1000.0
_OUT_OF_BOUNDS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--only', nargs='+', default=[], metavar='FAULT',
                        help='names, or parts of them, quoted where they have spaces; default: '
                        f'all ({", ".join(fault.name for fault in FAULTS)})')
    parser.add_argument('--safe-s', type=float, default=2.5,
                        help='longest time from a fault to rest [s]')
    parser.add_argument('--said-s', type=float, default=4.0,
                        help='longest time until diagnostics name it [s]')
    parser.add_argument('--jump-rad', type=float, default=0.035,
                        help='largest difference between two commands that were sent one after '
                        'the other [rad]; 8 rad/s at 250 Hz are 0.032')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(args: argparse.Namespace) -> int:
    """Drill; the exit code says whether all was within bounds."""
    chosen = chosen_faults(args.only)
    bounds = Bounds(args.safe_s, args.said_s, args.jump_rad)
    shared = {'use_sim_time': True}
    sources = {f'cameras.{camera}.frozen_ms': _FROZEN_MS for camera in ('front', 'wrist')}
    processes = policy_processes(wam={**shared, **sources}, servo=shared)
    with surroundings(processes) as group:
        outcomes = _drill(chosen, group, bounds)
    result = {'bounds': vars(bounds), 'faults': [outcome.shown() for outcome in outcomes]}
    print(json.dumps(result, indent=1)) if args.json else _show(outcomes)
    return 0 if all(outcome.within_bounds for outcome in outcomes) else _OUT_OF_BOUNDS


def _drill(chosen: Sequence[Fault], group: ProcessGroup, bounds: Bounds) -> list[Outcome]:
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    robot = DrillRobot()
    executor = SingleThreadedExecutor()
    executor.add_node(robot)
    calls = Calls(robot, executor, group.check)
    try:
        exercise = Exercise(Scene(robot, calls, group.pids()['wam_node']), bounds)
        exercise.begin()
        return [exercise.run(fault) for fault in chosen]
    finally:
        robot.close()
        executor.shutdown()
        robot.destroy_node()
        rclpy.try_shutdown()


def _show(outcomes: list[Outcome]) -> None:
    table = Table(title='fault drill')
    for column in ('fault', 'to rest [s]', 'to message [s]', 'largest jump [rad]', 'lost',
                   'goes on', 'within bounds', 'what diagnostics said'):
        table.add_column(column)
    for outcome in outcomes:
        table.add_row(
            outcome.fault, _seconds(outcome.safe_s), _seconds(outcome.said_s),
            f'{outcome.jump_rad:.4f}', str(outcome.lost_commands), _word(outcome.recovered),
            _word(outcome.within_bounds), outcome.said)
    Console(width=130).print(table)


def _seconds(value: float | None) -> str:
    return '-' if value is None else f'{value:.2f}'


def _word(value: Any) -> str:
    return 'yes' if value else 'NO'
