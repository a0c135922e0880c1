"""Measure the engine or the planner: `physis bench NAME`, or `all`."""

from __future__ import annotations

import argparse

from physis_core.cli.commands import bench_modules, execute, listing, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('name', nargs='?',
                        help=f'one of {", ".join(bench_modules())}, or all: each in turn but the '
                             'long ones (without a name: list them)')
    parser.add_argument('arguments', nargs=argparse.REMAINDER,
                        help='options of that bench (`physis bench NAME --help`)')


def run(args: argparse.Namespace) -> int:
    """Run one bench, or each in turn but those that are `LONG`; the highest of their exit codes."""
    modules = bench_modules()
    if args.name is None:
        print(f'benches:\n{listing(modules)}\n\n`physis bench NAME --help` explains one of them, '
              '`physis bench all` runs each in turn but the long ones.')
        return 0
    names = list(modules) if args.name == 'all' else [args.name]
    benches = {name: load('bench', name, modules) for name in names}
    return max(execute(bench, f'physis bench {name}', args.arguments)
               for name, bench in benches.items()
               if args.name != 'all' or not getattr(bench, 'LONG', False))
