"""How the executables start ROS: what cannot be read is one sentence, not a trace-back, and what
would be ignored is said."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import rclpy
import yaml
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from physis_core.errors import InputError

# What rcl says, as it says it in no other form.
_FILE = re.compile(r"Couldn't parse params file: '--params-file (?P<file>.*?)'\. Error: "
                   r'(?P<error>.*)', re.DOTALL)
_LINE = re.compile(r'line(?:_num)? (\d+)')
_PLACE = re.compile(r', at \S+:\d+')  # of the C source
# Spelled so much like the node's name, a section is meant for it.
_MISSPELT = 0.75


def start_ros(arguments: Sequence[str] | None = None) -> None:
    """Start rclpy with the signal handlers of the caller left alone.

    Args:
        arguments: of a ROS command line; None: those of the process.

    Raises:
        InputError: the arguments or a parameter file cannot be read; names the file, the line and
            what to look for.
    """
    try:
        rclpy.init(args=None if arguments is None else list(arguments),
                   signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:  # the base of what rcl raises
        raise InputError(_sentence(str(error))) from error


def check_parameter_files(node: Node, arguments: Sequence[str] | None = None) -> None:
    """Look whether each parameter file says something to the node: rcl ignores other sections.

    A file without a section for the node is warned of: it may be for others.

    Args:
        node: started with the arguments.
        arguments: of a ROS command line; None: those of the process.

    Raises:
        InputError: it has none, and one is meant for it: of another namespace, or misspelt.
    """
    given = sys.argv if arguments is None else arguments
    for option, file in pairwise(given):
        if option != '--params-file':
            continue
        sections = list(_sections(yaml.safe_load(Path(file).read_text())))
        name = node.get_fully_qualified_name()
        if any(_pattern(section).fullmatch(name) for section in sections):
            continue
        lost = f'parameter file {file} has no section for the node `{name}`'
        for section in sections:
            word = section.rpartition('/')[2]
            if word == node.get_name():
                raise InputError(f'{lost}: `{section}` is for another namespace; write '
                                 f'`/**/{word}` for any, or leave the file out')
            if difflib.SequenceMatcher(None, word, node.get_name()).ratio() > _MISSPELT:
                raise InputError(f'{lost}, and `{section}` is spelled much like it: correct the '
                                 'name, or leave the file out')
        node.get_logger().warning(
            f'{lost}, so nothing of it counts here; its sections are {", ".join(sections)}')


def _sections(tree: Any, name: str = '') -> Iterator[str]:
    """The node names of a parameter file, with their namespaces and wildcards."""
    if not isinstance(tree, dict):
        return
    for key, value in tree.items():
        if key == 'ros__parameters':
            yield name
        else:
            yield from _sections(value, f'{name}/{str(key).strip("/")}')


def _pattern(section: str) -> re.Pattern[str]:
    """Which nodes a section is for."""
    words = {'**': '(/[^/]+)*', '*': '/[^/]+'}
    return re.compile(''.join(
        words.get(word, f'/{re.escape(word)}') for word in section.split('/')[1:]))


def _sentence(error: str) -> str:
    found = _FILE.search(error)
    if found is None:
        return f'ROS cannot be started: {_PLACE.sub("", error)}; check what follows --ros-args'
    said = _PLACE.sub('', found['error']).strip()
    line = _LINE.search(said)
    where = f'parameter file {found["file"]}' + (f', about line {line[1]}' if line else '')
    return f'{where}: {_remedy(said)} ({said})'


def _remedy(said: str) -> str:
    if 'opening' in said:
        return 'it cannot be opened; check the path'
    if 'same type' in said:
        return ('the entries of a list are not of one type; numbers are all written with a point '
                "or all without, and the words y, n, yes, no, on, off need quotes ('y')")
    return ('it is not a YAML file of parameters; around this line and above, look for a bracket '
            'or quote that is not closed, a tab, a missing colon, or a wrong indent')
