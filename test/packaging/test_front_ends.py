"""pip and colcon build one package: what one front end knows, the other knows too."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import physis_core

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope='session')
def project(repository: Path) -> dict[str, Any]:
    with (repository / 'pyproject.toml').open('rb') as file:
        return tomllib.load(file)['project']


@pytest.fixture(scope='session')
def package_xml(repository: Path) -> ElementTree.Element:
    return ElementTree.parse(repository / 'package.xml').getroot()


@pytest.fixture(scope='session')
def cmake(repository: Path) -> str:
    return (repository / 'CMakeLists.txt').read_text()


@pytest.fixture(scope='session')
def setup_py(repository: Path) -> dict[str, Any]:
    """Return the constants of setup.py, read without running it."""
    constants = {}
    for statement in ast.parse((repository / 'setup.py').read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                constants[statement.targets[0].id] = ast.literal_eval(statement.value)
            except ValueError:
                continue
    return constants


def test_one_version(project: dict[str, Any], package_xml: ElementTree.Element) -> None:
    assert project['version'] == package_xml.findtext('version') == physis_core.__version__


def test_one_license(
    project: dict[str, Any], package_xml: ElementTree.Element, repository: Path
) -> None:
    assert project['license'] == package_xml.findtext('license') == 'Apache-2.0'
    assert 'Apache License' in (repository / 'LICENSE').read_text()


def test_the_same_interface_packages(
    setup_py: dict[str, Any], cmake: str, package_xml: ElementTree.Element, repository: Path
) -> None:
    used = {
        package
        for message in (repository / 'msg').glob('*.msg')
        for package in re.findall(r'^(\w+)/\w+', message.read_text(), re.MULTILINE)
    }
    in_cmake = re.search(r'set\(interface_dependencies ([\w ]+)\)', cmake)
    assert in_cmake is not None
    assert set(setup_py['INTERFACE_DEPENDENCIES']) == used
    assert set(in_cmake[1].split()) == used
    assert {e.text for e in package_xml.iter('depend')} == used


def test_the_same_executables(
    setup_py: dict[str, Any], cmake: str, project: dict[str, Any]
) -> None:
    in_cmake = dict(re.findall(r'install_python_executable\((\w+) ([\w.]+) ', cmake))
    physis = in_cmake.pop('physis')
    assert in_cmake == setup_py['NODES']
    assert project['scripts'] == {
        'physis': f'{physis}:main',
        'physis-wam-node': f'{in_cmake["wam_node"]}:main',
        'physis-servo-node': f'{in_cmake["servo_node"]}:main',
    }


@pytest.mark.parametrize('group', ['commands', 'benches'])
def test_the_same_subcommands(project: dict[str, Any], cmake: str, group: str) -> None:
    match = re.search(rf'set\({group} ([\w\s.=]+)\)', cmake)
    assert match is not None
    in_cmake = dict(entry.split('=') for entry in match[1].split())
    assert project['entry-points'][f'physis.{group}'] == {
        name: f'physis_ros.{module}' for name, module in in_cmake.items()}


def test_what_the_entry_points_name_exists(
    project: dict[str, Any], setup_py: dict[str, Any]
) -> None:
    pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')
    modules = {
        *setup_py['NODES'].values(),
        *project['entry-points']['physis.commands'].values(),
        *project['entry-points']['physis.benches'].values(),
        *(target.partition(':')[0] for target in project['scripts'].values()),
    }
    missing = sorted(name for name in modules if importlib.util.find_spec(name) is None)
    assert not missing


@pytest.mark.parametrize('constraints', ['python.txt', 'kilted.txt', 'jazzy.txt'])
def test_constraints_pin_exactly(constraints: str, repository: Path) -> None:
    for line in (repository / 'constraints' / constraints).read_text().splitlines():
        if not line.startswith(('#', '-c ')):
            assert re.match(r'[\w.-]+==[\w.+-]+( ; .+)?$', line), line


def test_everything_required_is_pinned(project: dict[str, Any], repository: Path) -> None:
    pinned = {
        re.split('==', line)[0]
        for file in (repository / 'constraints').glob('*.txt')
        for line in file.read_text().splitlines()
    }
    extras = project['optional-dependencies'].values()
    for requirement in [*project['dependencies'], *(r for extra in extras for r in extra)]:
        name = re.split(r'[\[<>=; ]', requirement)[0]
        assert name in pinned or name == project['name'], f'{name} is not in constraints/'
    assert 'torch==2.13.0' in (repository / 'constraints' / 'python.txt').read_text().splitlines()
