"""Run a module in a process that ends when its parent ends, however the parent ends.

    python -m physis_ros.demo.leash <module> [arguments of the module]

The kernel sends SIGTERM when the parent is gone, so that the module can clean up; if it is still
there after `GRACE_S`, the process kills itself.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

GRACE_S = 5.0
PARENT_VARIABLE = 'PHYSIS_DEMO_PARENT'
_PR_SET_PDEATHSIG = 1
_WATCH_S = 0.5


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Put this process on the leash of its parent, then become the module."""
    parent = int(os.environ.pop(PARENT_VARIABLE))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
