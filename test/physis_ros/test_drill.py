"""Faults on the real thing: engine, policy and servo as processes, a robot that obeys them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_core.cli.commands import execute
from physis_core.delivery.shared_file import FOLDER, SharedFile
from physis_core.errors import InputError
from physis_ros.drill import command
from physis_ros.drill.faults import FAULTS, chosen_faults

# What a busy machine may add is not what is tested: benches measure times.
PATIENT = ('--safe-s', '15', '--said-s', '20')
WITH_REST = ('engine worker killed', 'stop request')
WITHOUT = ('joint order changed',)


def test_faults_are_chosen_by_parts_of_their_names() -> None:
    assert chosen_faults([]) == list(FAULTS)
    assert [fault.name for fault in chosen_faults(['camera', 'stop'])] == [
        'camera frozen', 'camera gone', 'stop request']


@pytest.mark.parametrize('given', [['camera', 'foo'], ['foo'], [''], [' ']])
def test_a_name_that_no_fault_has_is_refused_before_anything_is_started(given: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        execute(command, 'physis drill', ['--only', *given])
    assert f'no fault is called `{given[-1]}`; there are camera frozen, camera gone, joint NaN' in (
        str(refused.value))


def test_the_help_names_the_faults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        execute(command, 'physis drill', ['--help'])
    said = ' '.join(capsys.readouterr().out.split())
    assert all(fault.name in said for fault in FAULTS)


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
