"""A simulated robot, moved by a world action model through the whole path, and its report.

Starts the simulated SO-101 arm with its cameras, its controller, the policy (`wam_node` with its
worker processes) and the servo as processes of their own, runs episodes, measures everything on the
topics, and writes summary.json, report.html and a film of an episode.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from physis_core.errors import InputError
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import MODES
from physis_ros.demo.session import DemoSettings, run_demo
from physis_ros.ending import endings

OUTPUTS = ('joint_trajectory', 'forward_command')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `physis demo`."""
    parser.add_argument('--episodes', type=int, default=20, help='episodes to run (default 20)')
    parser.add_argument('--live', action='store_true', help='run until Ctrl-C, then report')
    parser.add_argument('--delay-ms', type=float, default=0.0, metavar='MS',
                        help='lengthen the planned lead from observation to motion by MS')
    parser.add_argument('--delay-chunks', type=int, default=0, metavar='N',
                        help='lengthen it by N chunk periods')
    parser.add_argument('--period-ms', type=float, metavar='MS',
                        help='interval between chunks (default: as in config/wam.yaml); a chunk '
                             'holds 160 ms of motion, so with less they overlap')
    parser.add_argument('--plan', choices=tuple(MODES), default='full_split',
                        help='how stages are spread over workers (default full_split)')
    parser.add_argument('--devices', type=int, default=2, metavar='N',
                        help='worker processes (default 2)')
    parser.add_argument('--output', choices=OUTPUTS, default=OUTPUTS[0],
                        help='what moves the arm: trajectories that the controller interpolates, '
                             "or the servo's commands (default joint_trajectory)")
    parser.add_argument('--blank-cameras', action='store_true',
                        help='publish black images: shows that the policy needs to see')
    parser.add_argument('--seed', type=int, default=1000,
                        help="seed of the first episode's scene (default 1000)")
    parser.add_argument('--out', type=Path, default=Path('out/demo'), metavar='FOLDER',
                        help='where results go (default out/demo)')
    parser.add_argument('--record', type=Path, metavar='FOLDER',
                        help='record what the policy sees and makes, for `physis replay` and '
                             '`physis bench handover` (default: do not)')
    parser.add_argument('--domain-id', type=int, metavar='ID',
                        help='ROS domain to run in, to look at the topics from outside (default: '
                             'one that nobody uses)')


def run(args: argparse.Namespace) -> int:
    """Run the demo; the exit code is 0 when it ran to its end."""
    settings = _settings(args)
    _say_what_stays_idle(settings)
    told: list[int] = []

    def leave(number: int, _: FrameType | None) -> NoReturn:
        """SIGTERM or SIGHUP ends the demo as Ctrl-C does: through the `with` blocks."""
        told.append(number)
        raise SystemExit(128 + number)

    for number in endings():
        if number is not signal.SIGINT:
            signal.signal(number, leave)
    try:
        return run_demo(settings)
    except Exception:  # rclpy may turn what a handler raises into an error of its own
        if told:
            return 128 + told[0]
        raise


def _settings(args: argparse.Namespace) -> DemoSettings:
    for option, value, least in (
            ('--episodes', args.episodes, 1), ('--devices', args.devices, 1),
            ('--delay-ms', args.delay_ms, 0), ('--delay-chunks', args.delay_chunks, 0),
            ('--seed', args.seed, 0)):
        if value < least:
            raise InputError(f'{option} is {value}; give at least {least}')
    if args.domain_id is not None and not 0 <= args.domain_id <= 101:
        raise InputError(f'--domain-id is {args.domain_id}; it is between 0 and 101')
    if args.period_ms is not None and not 20 <= args.period_ms <= 160:
        raise InputError(f'--period-ms is {args.period_ms:g}; between chunks of 160 ms, with '
                         'control points every 20 ms, are 20 to 160 ms')
    return DemoSettings(
        episodes=None if args.live else args.episodes, delay_ms=args.delay_ms,
        delay_chunks=args.delay_chunks, period_ms=args.period_ms, plan=args.plan,
        devices=args.devices, output=args.output, blank_cameras=args.blank_cameras,
        seed=args.seed, out=args.out, record=args.record, domain_id=args.domain_id)


def _say_what_stays_idle(settings: DemoSettings) -> None:
    """A plan takes no more devices than it has work for; say so where more were given."""
    graph = describe(ModelSpec('so101')).graph
    used = MODES[settings.plan](graph, settings.devices).devices
    if used < settings.devices:
        print(f'--devices {settings.devices}: plan `{settings.plan}` of the {graph.stages} stages '
              f'has work for {used}, so {settings.devices - used} stay idle', file=sys.stderr)
