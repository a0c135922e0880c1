"""How the executables start ROS: what cannot be read is one sentence, not a trace-back."""

from __future__ import annotations

import re
from collections.abc import Sequence

import rclpy
from rclpy.signals import SignalHandlerOptions

from physis_core.errors import InputError

# What rcl says, as it says it in no other form.
_FILE = re.compile(r"Couldn't parse params file: '--params-file (?P<file>.*?)'\. Error: "
                   r'(?P<error>.*)', re.DOTALL)
_LINE = re.compile(r'line(?:_num)? (\d+)')
_PLACE = re.compile(r', at \S+:\d+')  # of the C source


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
