"""The errors of Physis.

Everything a caller can be told about derives from :class:`PhysisError`.  An :class:`InputError`
is the caller's to mend: its text names the value, the limit and the remedy, and the command line
prints it as one sentence with exit code 2.
"""

from __future__ import annotations

import traceback
from pathlib import Path


def how_to_install(extra: str) -> str:
    """How to get the packages of an extra, as the end of a sentence.

    From a clone: Physis is on no package index.
    """
    return f"install it in the clone of Physis with `pip install '.[{extra}]'`"


def told(error: BaseException) -> str:
    """An error of somebody else's code in one sentence: what, and on which line it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f' ({Path(frames[-1].filename).name}, line {frames[-1].lineno})' if frames else ''
    return f'{type(error).__name__}: {" ".join(str(error).split())}{where}'


class PhysisError(Exception):
    """Base of every error Physis raises on purpose."""


class InputError(PhysisError, ValueError):
    """A value from outside is not acceptable; nothing was changed."""


class PlanError(InputError):
    """A plan contradicts its graph, its devices or itself; the text names the stage."""


class Refused(PhysisError):
    """A stream was not admitted; the pool is exactly as it was before."""


class StreamError(PhysisError):
    """A stream ended because of a fault; other streams go on."""


class OrderViolation(StreamError):
    """A task would have run before the tasks it depends on: the stream is ended instead."""


class WorkerLost(StreamError):
    """A worker process died, or stopped making progress."""
