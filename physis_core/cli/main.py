"""Entry point of the `physis` command.

Bad input is one sentence on stderr and exit code 2; a failure at run time is one sentence and exit
code 1.  A trace-back is a bug of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from physis_core import __version__
from physis_core.cli.commands import command_modules, execute, listing, load, needs
from physis_core.errors import InputError, PhysisError

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `physis` with the given arguments (None: those of the process)."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ['--help']
    try:
        if name in ('-h', '--help'):
            print(_usage())
            return 0
        if name == '--version':
            print(f'physis {__version__}')
            return 0
        _look_here_too()
        return execute(load('command', name, command_modules()), f'physis {name}', rest)
    except InputError as error:
        return _say(error, BAD_INPUT)
    except ModuleNotFoundError as error:
        return _say(InputError(f'command `{name}` {needs(error)}'), BAD_INPUT)
    except PhysisError as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a place that no command has looked at before it used it
        place = f'`{error.filename}`: ' if error.filename is not None else ''
        return _say(PhysisError(f'{place}{error.strerror or error}; give another place, or make '
                                'room there'), FAILED)


def _say(error: PhysisError, code: int) -> int:
    print(f'physis: {" ".join(str(error).split())}', file=sys.stderr)
    return code


def _usage() -> str:
    return ('usage: physis COMMAND [OPTIONS]\n\n'
            f'commands:\n{listing(command_modules())}\n\n'
            '`physis COMMAND --help` explains one of them; `physis --version` says which this is.')


def _look_here_too() -> None:
    """A user's own model may be a module in the current folder; what is installed comes first."""
    try:
        here = os.getcwd()
    except OSError as error:
        raise InputError('the current folder is gone; change to one that exists') from error
    if here not in sys.path:
        sys.path.append(here)


if __name__ == '__main__':
    sys.exit(main())
