"""How many equal streams fit on a pool: even split, Best-Fit, wrap-around and the best of them."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from physis_core.cli.inputs import (
    add_device_arguments,
    check_bmax,
    device_name,
    positive_us,
    read_devices,
)
from physis_core.cli.report import check_place, print_json, print_table, print_written
from physis_core.models.presets import load_preset
from physis_core.planning.capacity import best_placement, upper_bound, within_response
from physis_core.planning.cluster import Cluster
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.pool import StreamClass

MODELS = 'wan2.1-1.3b,wan2.2-5b,wan2.1-14b,ltx-2.x,h3'
COLUMNS = (
    'even', 'best_fit', 'best_fit_lds', 'spread', 'wrap', 'portfolio', 'upper_bound', 'search_ms')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--devices', type=int, default=24, metavar='G', help='how many (24)')
    add_device_arguments(parser)
    parser.add_argument('--slo-ms', type=float, default=1600.0, metavar='MS',
                        help='longest period of every stream (1600)')
    parser.add_argument('--max-response-ms', type=float, default=None, metavar='MS',
                        help='place only as many as a schedule answers within this')
    parser.add_argument('--models', default=MODELS, help='presets, separated by commas')
    parser.add_argument('--plot', type=Path, default=None, metavar='FILE',
                        help='draw the result as a picture')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Place each model's streams by every strategy."""
    check_bmax(args.bmax)
    check_place(args.plot)
    cluster = read_devices(args, args.devices)
    rows = {model: place(model, cluster, args) for model in args.models.split(',')}
    if args.plot is not None:
        from physis_core.cli.plots.capacity import draw_capacity
        draw_capacity(rows, args.plot)
        print_written(args.plot, 'streams by model')
    if args.json:
        print_json(rows)
    else:
        columns = COLUMNS + (() if args.max_response_ms is None else
                             ('within_response', 'response_ms'))
        print_table(f'streams at a period of {args.slo_ms:g} ms on {args.devices} devices\n'
                    f'(predicted; stage times computed from shapes for {device_name(args)}, not '
                    'measured)',
                    ('model', *columns),
                    [(model, *(row[name] for name in columns)) for model, row in rows.items()])
    return 0


def place(model: str, cluster: Cluster, args: argparse.Namespace) -> dict[str, float]:
    """The counts of one model."""
    profile = analytic_profile(load_preset(model), load_device(device_name(args)), args.bmax)
    stream_class = StreamClass(profile, positive_us(args.slo_ms, '--slo-ms'))
    started_s = time.process_time()
    pools = best_placement(cluster, stream_class)
    search_ms = (time.process_time() - started_s) * 1e3
    counts = {**{name: len(pool.placed) for name, pool in pools.items()},
              'upper_bound': upper_bound(cluster, stream_class), 'search_ms': search_ms}
    if args.max_response_ms is None:
        return counts
    pool, schedule = within_response(
        cluster, stream_class, positive_us(args.max_response_ms, '--max-response-ms'))
    slowest_us = 0 if schedule is None else max(schedule.response_us.values())
    return {**counts, 'within_response': len(pool.placed), 'response_ms': slowest_us / 1e3}
