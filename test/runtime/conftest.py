"""What tests of the engine share: nothing may be left behind by any of them."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import psutil
import pytest


def host_processes() -> list[int]:
    """Host processes below this one, by pid."""
    return [child.pid for child in psutil.Process().children(recursive=True)
            if 'forkserver' in ' '.join(child.cmdline()) and child.ppid() != os.getpid()]


@pytest.fixture(scope='module', autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After a module's engines are closed no host process of theirs is there."""
    before = set(host_processes())
    yield
    gc.collect()
    until_s = time.monotonic() + 5.0
    while set(host_processes()) - before and time.monotonic() < until_s:
        time.sleep(0.02)
    assert set(host_processes()) <= before
