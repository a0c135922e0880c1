"""Faults on the real thing: engine, policy and servo as processes, a robot that obeys them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_core.delivery.shared_file import FOLDER, SharedFile

# What a busy machine may add is not what is tested: benches measure times.
PATIENT = ('--safe-s', '15', '--said-s', '20')
WITH_REST = ('engine worker killed', 'stop request')
WITHOUT = ('joint order changed',)


@pytest.mark.timeout(300)
def test_the_robot_comes_to_rest_and_goes_on(tmp_path: Path) -> None:
    before = left_behind()  # by whoever else was killed on this machine; looking removes it
    completed = subprocess.run(
        [sys.executable, '-m', 'physis_core.cli.main', 'drill', '--json', *PATIENT, '--only',
         *WITH_REST, *WITHOUT], capture_output=True, text=True, cwd=tmp_path, timeout=280,
        env={key: value for key, value in os.environ.items()
             if key != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'})
    assert completed.returncode == 0, completed.stdout + completed.stderr
    outcomes = {fault['fault']: fault for fault in json.loads(completed.stdout)['faults']}
    assert outcomes.keys() == {*WITH_REST, *WITHOUT}
    for name, outcome in outcomes.items():
        assert outcome['recovered'], name
        assert (outcome['safe_s'] is not None) == (name in WITH_REST), name
    assert 'stop requested' in outcomes['stop request']['said']
    assert 'host process' in outcomes['engine worker killed']['said']
    assert set(left_behind()) <= set(before)


def left_behind() -> list[str]:
    """Rings whose creator is gone; others on this machine may have rings of their own."""
    found = []
    for path in FOLDER.glob('physis-*-ring'):
        shared = SharedFile.open(path.name.removeprefix('physis-'))
        if shared is not None:
            if not shared.creator_alive():
                found.append(path.name)
            shared.close()
    return found
