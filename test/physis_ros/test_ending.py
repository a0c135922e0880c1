"""A process that is told to end twice ends in order."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# Says what it does, and takes its time to end: until a line is written to it.
PROCESS = """
import signal, time
from physis_ros.ending import interrupt_once
interrupt_once(signal.SIGINT, signal.SIGTERM)
try:
    print('running', flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print('ending', flush=True)
    input()
    print('ended', flush=True)
"""


@pytest.mark.parametrize('first', [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_does_not_break_into_the_ending(first: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, '-c', PROCESS], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == 'running\n'
        process.send_signal(first)
        assert process.stdout.readline() == 'ending\n'
        process.send_signal(signal.SIGINT)
        process.stdin.write('\n')
        process.stdin.flush()
        assert process.stdout.readline() == 'ended\n'
    assert process.returncode == 0
