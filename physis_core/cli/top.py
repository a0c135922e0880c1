"""A running engine, live: streams, devices, stages, links; for Prometheus too, if asked."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from physis_core.cli.report import compact_table, print_json
from physis_core.cli.watch import EngineWatch, add_engine_argument
from physis_core.errors import InputError
from physis_core.observability.snapshot import Snapshot

_DAY_S = 86_400.0
_MB = 1e6
_MOST_ROWS = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_engine_argument(parser)
    parser.add_argument('--window', type=float, default=5.0, metavar='S',
                        help='seconds that the numbers are of (5)')
    parser.add_argument('--every', type=float, default=1.0, metavar='S',
                        help='seconds between two looks (1)')
    parser.add_argument('--once', action='store_true', help='look once and end')
    parser.add_argument('--json', action='store_true', help='look once, print one JSON object')
    parser.add_argument('--stages', action='store_true', help='show every stage')
    parser.add_argument('--prometheus', type=int, default=None, metavar='PORT',
                        help='also answer Prometheus on this port (off)')
    parser.add_argument('--address', default='127.0.0.1',
                        help='where to answer Prometheus (127.0.0.1)')


def run(args: argparse.Namespace) -> int:
    """Watch until interrupted, or until the engine ends."""
    for name in ('window', 'every'):
        if not 0 < getattr(args, name) <= _DAY_S:
            raise InputError(f'--{name} is {getattr(args, name):g} s; give more than 0 and at most '
                             f'{_DAY_S:g}')
    watch = EngineWatch(args.pid)
    if args.json or args.once:
        time.sleep(min(1.0, args.window))  # rates of links need two readings
        seen = watch.snapshot(args.window)
        if args.json:
            print_json({'pid': watch.descriptor.pid, **asdict(seen)})
        else:
            Console().print(watch.name, view(seen, args.stages), sep='\n')
        return 0
    end = _serve(args)
    try:
        _live(watch, args)
    finally:
        end()
    return 0


def _live(watch: EngineWatch, args: argparse.Namespace) -> None:
    def shown() -> Group:
        return Group(watch.name, view(watch.snapshot(args.window), args.stages))

    with Live(shown(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(args.every)
            try:
                live.update(shown(), refresh=True)
            except InputError:  # the engine has ended, and so does this
                return


def view(seen: Snapshot, stages: bool) -> Group:
    """Everything as tables."""
    tables = [_streams(seen), _devices(seen), _memory(seen), _edges(seen)]
    return Group(*tables, *([_stages(seen)] if stages else []))


def _streams(seen: Snapshot) -> Table:
    pool = seen.pool
    table = _table(
        f'{seen.model}, last {seen.window_s:g} s: {pool.goodput_per_s:.1f} outputs/s on time '
        f'({_percent(pool.on_time_ratio)}), {pool.device_s_per_output:.3g} device-s each',
        'stream\n:epoch', 'prio-\nrity', 'chunk', 'on time', 'good\n/s', 'period ms\np50 / p99',
        'response ms\np50 / p99', 'device s\n/output')
    for row in seen.streams[:_MOST_ROWS]:
        account = row.goodput
        table.add_row(f'{row.slot}:{row.epoch}', str(row.priority), str(row.chunk),
                      _percent(account.on_time_ratio), _number(row.goodput_per_s),
                      _pair(account.period_p50_ms, account.period_p99_ms),
                      _pair(account.response_p50_ms, account.response_p99_ms),
                      _number(row.device_s_per_output))
    return table


def _devices(seen: Snapshot) -> Table:
    table = _table('devices', 'device', 'busy', 'batch', 'sizes', 'streams', 'gain',
                   'wait ms\np50 / p99')
    for row in seen.devices[:_MOST_ROWS]:
        batches = row.batches
        table.add_row(
            str(row.device), _percent(row.busy), _number(batches.mean), _sizes(batches.sizes),
            _number(batches.streams_mean), _number(batches.gain),
            _pair(row.queueing_p50_ms, row.queueing_p99_ms))
    return table


def _memory(seen: Snapshot) -> Table:
    table = _table('memory [MB]', 'device', 'weights', 'KV', 'activations', 'workspace')
    for row in seen.devices[:_MOST_ROWS]:
        memory = row.memory
        table.add_row(str(row.device), *(_number(part / _MB) for part in (
            memory.weights, memory.kv, memory.activations, memory.workspace)))
    return table


def _sizes(shares: Mapping[int, float]) -> str:
    """The most frequent sizes of batches, with their shares."""
    most = sorted(shares, key=lambda size: -shares[size])[:3]
    return ', '.join(f'{size}: {100 * shares[size]:.0f} %' for size in sorted(most))


def _stages(seen: Snapshot) -> Table:
    table = _table('stages', 'device', 'step', 'block', 'tasks',
                   'service ms\np50 / p99', 'wait ms\np50 / p99')
    for device in seen.devices:
        for stage in device.stages:
            table.add_row(*map(str, (device.device, stage.step, stage.block, stage.tasks)),
                          _pair(stage.service_p50_ms, stage.service_p99_ms),
                          _pair(stage.queueing_p50_ms, stage.queueing_p99_ms))
    return table


def _edges(seen: Snapshot) -> Table:
    table = _table('links', 'from', 'to', 'kind', 'messages/s', 'MB/s', 'wait us', 'refused')
    busiest = sorted(seen.edges, key=lambda row: -row.messages_per_s)[:_MOST_ROWS]
    for row in busiest:
        table.add_row(_end(row.sender), _end(row.receiver), row.kind,
                      *map(_number, (row.messages_per_s, row.bytes_per_s / _MB, row.wait_us)),
                      str(row.refusals))
    return table


def _table(title: str, *columns: str) -> Table:
    table = compact_table(title)
    for column in columns:
        table.add_column(column, justify='right', overflow='fold')
    return table


def _end(device: int) -> str:
    return 'engine' if device < 0 else str(device)


def _percent(ratio: float) -> str:
    return '-' if math.isnan(ratio) else f'{100 * ratio:.1f} %'


def _number(value: float) -> str:
    return _digits(value, 4)


def _pair(first: float, second: float) -> str:
    return f'{_digits(first, 3)} / {_digits(second, 3)}'


def _digits(value: float, most: int) -> str:
    """So many digits, but never an exponent for a large number."""
    if math.isnan(value):
        return '-'
    return f'{value:.0f}' if abs(value) >= 10 ** (most - 1) else f'{value:.{most}g}'


def _serve(args: argparse.Namespace) -> Callable[[], None]:
    if args.prometheus is None:
        return lambda: None
    from physis_core.observability.exporter import serve
    watch = EngineWatch(args.pid)
    return serve(lambda: watch.snapshot(args.window), args.prometheus, args.address)
