"""What an executable says when ROS cannot be started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

NODE = '/**/wam_node:\n  ros__parameters:\n'


@pytest.mark.parametrize(('text', 'sentence'), [
    (NODE + '    joints:\n      names: [x, y, z]\n', "on, off need quotes ('y')"),
    (NODE + '    camera_names: [front, wrist\n    seed: 1\n', 'a bracket or quote'),
    (None, 'it cannot be opened; check the path'),
])
@pytest.mark.parametrize('module', ['wam_node', 'servo_node'])
def test_a_broken_parameter_file_is_one_sentence(
        tmp_path: Path, module: str, text: str | None, sentence: str) -> None:
    file = tmp_path / 'robot.yaml'
    if text is not None:
        file.write_text(text)
    environment = {key: value for key, value in os.environ.items()
                   if key != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    done = subprocess.run(
        [sys.executable, '-m', f'physis_ros.{module}', '--ros-args', '--params-file', str(file)],
        capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 1
    assert f'{module}: parameter file {file}' in done.stderr and sentence in done.stderr
    assert 'Traceback' not in done.stderr
    if text is not None:
        assert 'about line' in done.stderr


@pytest.mark.parametrize('node', ['robot_node', 'controller_node'])
def test_the_demo_refuses_unknown_parameters_too(node: str) -> None:
    pytest.importorskip(f'physis_ros.demo.{node}', reason='needs the extra `demo`')
    environment = {key: value for key, value in os.environ.items()
                   if key != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    done = subprocess.run(
        [sys.executable, '-m', f'physis_ros.demo.{node}', '--ros-args', '-p', 'inpt:=1'],
        capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 1
    assert 'parameter `inpt` is not known' in done.stderr and 'Traceback' not in done.stderr
