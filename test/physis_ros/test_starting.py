"""What an executable says when ROS cannot be started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

import rclpy
from rclpy.node import Node

from physis_core.errors import InputError
from physis_ros.starting import check_parameter_files

NODE = '/**/wam_node:\n  ros__parameters:\n'
SECTION = '{}:\n  ros__parameters:\n    use_sim_time: true\n'


@pytest.fixture
def node_of(tmp_path: Path) -> Iterator[Callable[..., tuple[Node, list[str], Path]]]:
    """Makes a node, the command line it was given, and the parameter file in it."""
    rclpy.init()
    nodes: list[Node] = []

    def make(section: str, namespace: str = '') -> tuple[Node, list[str], Path]:
        file = tmp_path / 'robot.yaml'
        file.write_text(section if '\n' in section else SECTION.format(section))
        arguments = ['--ros-args', '--params-file', str(file), '-r', f'__ns:=/{namespace}']
        nodes.append(Node('wam_node', cli_args=arguments))
        return nodes[-1], arguments, file

    yield make
    for node in nodes:
        node.destroy_node()
    rclpy.try_shutdown()


@pytest.mark.parametrize(('section', 'namespace', 'counts'), [
    ('/**', '', True), ('/**/wam_node', '', True), ('/**/wam_node', 'left', True),
    ('wam_node', '', True), ('/wam_node', '', True), ('/*', '', True),
    ('/*/wam_node', 'left', True), ('left/wam_node', 'left', True),
    ('/left:\n  wam_node:\n    ros__parameters:\n      use_sim_time: true\n', 'left', True),
    ('/*', 'left', False), ('servo_node', '', False), ('driver', '', False),
])
def test_a_file_without_a_section_for_the_node_is_warned_of(
        node_of: Callable[..., tuple[Node, list[str], Path]], capfd: pytest.CaptureFixture[str],
        section: str, namespace: str, counts: bool) -> None:
    node, arguments, file = node_of(section, namespace)
    assert node.get_parameter('use_sim_time').value == counts  # what rcl makes of it
    check_parameter_files(node, arguments)
    said = capfd.readouterr().err
    lost = (f'parameter file {file} has no section for the node '
            f'`{node.get_fully_qualified_name()}`, so nothing of it counts here')
    assert (lost in said) == (not counts)


def test_a_node_that_is_misspelt_in_a_file_is_refused(
        node_of: Callable[..., tuple[Node, list[str], Path]]) -> None:
    for section, sentence in (('/**/wam_nod', 'wam_nod` is spelled much like it: correct'),
                              ('wam_node', '`/wam_node` is for another namespace; write `/')):
        node, arguments, _ = node_of(section, 'left')
        with pytest.raises(InputError, match=sentence):
            check_parameter_files(node, arguments)
    both = SECTION.format('/**/wam_nod') + SECTION.format('/**/wam_node')
    node, arguments, _ = node_of(both)
    check_parameter_files(node, arguments)  # a neighbour of nearly the same name


@pytest.mark.parametrize('name', ['wam_nod', 'servo_nodes'])
def test_an_executable_does_not_start_with_the_defaults_then(tmp_path: Path, name: str) -> None:
    module = 'servo_node' if name.startswith('servo') else 'wam_node'
    (tmp_path / 'robot.yaml').write_text(SECTION.format(name))
    done = started(module, tmp_path / 'robot.yaml')
    assert done.returncode == 1
    assert f'{module}: parameter file' in done.stderr and f'`/{name}`' in done.stderr
    assert 'Traceback' not in done.stderr


def started(module: str, file: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items()
                   if key != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    return subprocess.run(
        [sys.executable, '-m', f'physis_ros.{module}', '--ros-args', '--params-file', str(file)],
        capture_output=True, text=True, env=environment, timeout=120)


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
    done = started(module, file)
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
