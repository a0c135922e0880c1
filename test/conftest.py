"""What every test gets: a ROS graph of its own, and no rclpy left running after it."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from physis_core.delivery.shared_file import FOLDER

# Read when a message class is first imported: a wrong message field is an error.
os.environ['ROS_PYTHON_CHECK_FIELDS'] = '1'

# A shell has what it starts in the background ignore SIGINT, and so would the processes that tests
# start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without ROS 2 (PHYSIS_ROS_DISTRO=none) there is nothing to run these against.
collect_ignore = [] if importlib.util.find_spec('rclpy') else ['demo', 'physis_ros']

# DDS derives UDP ports from the domain; these domains stay clear of the ephemeral ports.
DOMAINS = range(1, 101)
# Tests go through the domains one after another, so that participants of the last test, which
# may take a moment to be forgotten, are not seen by the next.
_turn = itertools.count(os.getpid())


def claim_domain() -> tuple[int, socket.socket]:
    """
    Return a ROS domain that no other test of this machine uses, and what holds the claim.

    A claim is a bound abstract socket: the kernel drops it when the process ends, however it
    ends, so several test runs can share a machine and none has to tidy up after a killed one.
    The demo claims its domains by the same name.
    """
    for turn in itertools.islice(_turn, len(DOMAINS)):
        domain = DOMAINS[turn % len(DOMAINS)]
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f'\0physis-domain-{domain}')
        except OSError:
            claim.close()
        else:
            return domain, claim
    raise RuntimeError(f'all ROS domains from {DOMAINS[0]} to {DOMAINS[-1]} are claimed by tests')


@pytest.fixture(autouse=True)
def private_ros_graph(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Give the test, and the processes it starts, a ROS domain that nobody else talks in."""
    domain, claim = claim_domain()
    monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path_factory.getbasetemp() / 'ros_log'))
    with contextlib.closing(claim):
        yield domain
        if 'rclpy' in sys.modules:
            sys.modules['rclpy'].try_shutdown()


def pytest_sessionfinish() -> None:
    """Remove what Fast DDS could not when a test killed one of its processes."""
    if not collect_ignore:
        from physis_ros.demo.shared_memory import sweep_fast_dds
        sweep_fast_dds()


@pytest.fixture
def ring_name() -> Iterator[str]:
    """Give a name for a ring in shared memory, and see to it that none is left by that name."""
    name = f'test-{os.getpid()}-{time.monotonic_ns()}'
    yield name
    ring = FOLDER / f'physis-{name}'
    left_behind = ring.exists()
    ring.unlink(missing_ok=True)
    assert not left_behind, 'the ring was left behind'


@pytest.fixture(scope='session')
def repository() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).parents[1]
