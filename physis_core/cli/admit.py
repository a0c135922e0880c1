"""Replay arrivals and departures of streams on a pool: ours against even split and Best-Fit.

The load of a stream is the share of a device's time that it needs alone; what is carried is that
load times the stay of those admitted.  Admission times are processor times of one decision.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from physis_core.cli.inputs import add_device_arguments, check_bmax, device_name, read_devices
from physis_core.cli.report import print_json, print_table, write_text
from physis_core.errors import InputError
from physis_core.models.presets import load_preset
from physis_core.planning.cluster import check_count
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.replay import Replay, replay
from physis_core.planning.strategies import STRATEGIES
from physis_core.planning.traces import GENERATORS, Session, read_trace, trace_text

COMPARED = {'ours': 'portfolio', 'even': 'even', 'best_fit': 'best_fit'}
COLUMNS = ('admitted', 'refused', 'carried_load', 'carried_share', 'admission_p50_ms',
           'admission_p99_ms', 'time_utilisation', 'memory_utilisation')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--trace', type=Path, default=None, metavar='FILE',
                        help='sessions to replay')
    parser.add_argument('--generate', choices=sorted(GENERATORS), default=None,
                        help='make up sessions instead')
    parser.add_argument('--seed', type=int, default=0, help='of the generator (0)')
    parser.add_argument('--out', type=Path, default=None, metavar='FILE',
                        help='write the generated trace and stop')
    parser.add_argument('--devices', type=int, default=24, metavar='G', help='how many (24)')
    add_device_arguments(parser)
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Generate a trace, or replay one."""
    sessions = _sessions(args)
    if args.out is not None:
        write_text(args.out, trace_text(sessions))
        print(f'{len(sessions)} sessions in {args.out}')
        return 0
    check_bmax(args.bmax)
    cluster = read_devices(args, args.devices)
    device = load_device(device_name(args))
    profiles = {model: analytic_profile(load_preset(model), device, args.bmax)
                for model in sorted({session.model for session in sessions})}
    results = {name: _report(replay(sessions, profiles, cluster, STRATEGIES[strategy]))
               for name, strategy in COMPARED.items()}
    if args.json:
        print_json({'sessions': len(sessions), 'devices': args.devices, **results})
    else:
        print_table(f'{len(sessions)} sessions on {args.devices} devices', ('', *COLUMNS),
                    [(name, *(result[column] for column in COLUMNS))
                     for name, result in results.items()])
    return 0


def _sessions(args: argparse.Namespace) -> list[Session]:
    if (args.trace is None) == (args.generate is None):
        raise InputError('give either --trace FILE or --generate NAME')
    if args.trace is not None:
        if args.out is not None:
            raise InputError(f'--out {args.out} is for --generate; a trace is on disk already')
        return read_trace(args.trace)
    check_count(args.devices)
    if args.seed < 0:
        raise InputError(f'--seed is {args.seed}; it is at least 0')
    return GENERATORS[args.generate](args.devices, args.seed)


def _report(result: Replay) -> dict[str, Any]:
    examples = {shortage.resource: {'stream': stream, 'missing': shortage.missing,
                                    'nearest_period_ms': None if shortage.nearest_period_us is None
                                    else shortage.nearest_period_us / 1e3}
                for stream, shortage in reversed(result.refused)}
    return {
        'admitted': result.admitted,
        'refused': len(result.refused),
        'refused_for': dict(Counter(shortage.resource for _, shortage in result.refused)),
        'refused_examples': examples,
        'carried_load': result.carried_s,
        'carried_share': result.carried_s / result.offered_s,
        'admission_p50_ms': result.admission_quantile_ms(0.5),
        'admission_p99_ms': result.admission_quantile_ms(0.99),
        'time_utilisation': result.time_used,
        'memory_utilisation': result.memory_used,
    }
