"""A process that is told to end ends in order, whatever it is doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from physis_ros.ending import Ending

# Says what it does, and takes its time to end: until a line is written to it.
PROCESS = """
import signal, time
from physis_ros.ending import endings, interrupt_once
interrupt_once(*endings())
try:
    print('running', flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print('ending', flush=True)
    input()
    print('ended', flush=True)
"""


@pytest.mark.parametrize('first', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


def test_nohup_keeps_a_process_running() -> None:
    program = 'from physis_ros.ending import endings; print(*(one.name for one in endings()))'
    said = subprocess.run(['nohup', sys.executable, '-c', program], stdout=subprocess.PIPE,
                          text=True, check=True).stdout
    assert said.split() == ['SIGINT', 'SIGTERM']


HANG_S = 40.0  # far longer than anything here takes; a start that goes on would take longer


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize('whole_group', [False, True])  # a terminal tells all, `ros2 launch` one
def test_a_start_is_broken_off_and_nothing_is_left(
        tmp_path: Path, ring_name: str, number: signal.Signals, whole_group: bool) -> None:
    marker = tmp_path / 'loading'
    parameters = {'ring': ring_name, 'model': 'own_models.slow', 'camera_names': "['']",
                  'model_options': f"'{json.dumps({'marker': str(marker)})}'"}
    environment = {key: value for key, value in os.environ.items()
                   if key != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    environment['PYTHONPATH'] = os.pathsep.join(
        [str(Path(__file__).parent), environment.get('PYTHONPATH', '')])
    node = subprocess.Popen(
        [sys.executable, '-m', 'physis_ros.wam_node', '--ros-args',
         *(part for name, value in parameters.items() for part in ('-p', f'{name}:={value}'))],
        env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: marker.exists() or node.poll() is not None)
        assert node.poll() is None
        (os.killpg if whole_group else os.kill)(node.pid, number)
        _, said = node.communicate(timeout=HANG_S)
    finally:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
            node.communicate()
    assert node.returncode == 0, said
    assert 'told to end while the engine was starting' in said and 'Traceback' not in said
    wait_for(lambda: not Path(f'/proc/{marker.read_text()}').exists())


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + HANG_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_only_what_may_be_broken_off_is_and_only_once() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        ending = Ending(signal.SIGUSR1)
        with pytest.raises(KeyboardInterrupt), ending.breaking():
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)  # a second one breaks into nothing
        assert ending.told.is_set()
        with pytest.raises(KeyboardInterrupt), ending.breaking():
            pytest.fail('it was told before')
    finally:
        signal.signal(signal.SIGUSR1, before)
