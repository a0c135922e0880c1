"""`make` says in one sentence what is missing and what to do about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# What .ci/make-venv uses besides the programs that a test leaves out on purpose.
SHELL_TOOLS = ('bash', 'cat', 'dirname', 'env', 'grep', 'head', 'rm', 'tail')


def make_program(folder: Path, name: str, script: str) -> Path:
    program = folder / name
    program.write_text(f'#!/usr/bin/env bash\n{script}\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """Return the only PATH folder of a machine with a Python and nothing else, not as root."""
    folder = tmp_path / 'bin'
    folder.mkdir()
    for tool in SHELL_TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    make_program(folder, 'id', 'echo 1000')
    make_program(folder, 'ldconfig', 'echo')
    make_program(folder, 'python3', f'exec {sys.executable} "$@"')
    return folder


@pytest.fixture
def make_venv(
    tmp_path: Path, copy_sources: Callable[[Path], Path]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs .ci/make-venv in a copy of the sources."""
    sources = copy_sources(tmp_path / 'physis')

    def run(
        *arguments: str, path: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        if path is not None:
            environment['PATH'] = str(path)
        return subprocess.run(
            [sources / '.ci' / 'make-venv', str(tmp_path / 'venv'), *arguments],
            env=environment,
            capture_output=True,
            text=True,
        )

    return run


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a failed run, which is the sentence."""
    assert result.returncode == 1, result.stdout + result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('physis: ')
    return last


def test_missing_system_packages_are_named(
    make_venv: Callable[..., subprocess.CompletedProcess[str]], bare_machine: Path
) -> None:
    result = make_venv('ros,demo,dev', 'constraints/kilted.txt', path=bare_machine)

    assert '`sudo apt-get install g++ libosmesa6`' in sentence(result)


def test_without_ros_and_demo_no_system_package_is_needed(
    make_venv: Callable[..., subprocess.CompletedProcess[str]], bare_machine: Path
) -> None:
    # It gets as far as the environment itself, which cannot be made at that place.
    (bare_machine.parent / 'venv').write_text('')
    result = make_venv('dev', 'constraints/python.txt', path=bare_machine)

    assert 'remove it and run make again' in sentence(result)


def test_an_old_python_is_refused(
    make_venv: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    old = make_program(tmp_path, 'python2', '[ "$1" = --version ] && echo Python 2.7.18 || exit 1')
    result = make_venv('dev', 'constraints/python.txt', str(old))

    assert 'is Python 2.7.18, and Physis needs Python 3.10 to 3.13' in sentence(result)


def test_no_python_at_all(
    make_venv: Callable[..., subprocess.CompletedProcess[str]], bare_machine: Path
) -> None:
    (bare_machine / 'python3').unlink()
    result = make_venv('dev', 'constraints/python.txt', path=bare_machine)

    assert 'Python 3.10 to 3.13 is needed and was not found' in sentence(result)


def test_an_unknown_python_is_refused(
    make_venv: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = make_venv('dev', 'constraints/python.txt', 'python9.9')

    assert 'PYTHON is `python9.9`, which is not an executable' in sentence(result)


def test_no_network(
    make_venv: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    # An environment that is there already, with the pip of this one.
    (tmp_path / 'venv' / 'bin').mkdir(parents=True)
    make_program(tmp_path / 'venv' / 'bin', 'python', f'exec {sys.executable} "$@"')
    result = make_venv(
        'dev',
        'constraints/python.txt',
        PHYSIS_ROS_DISTRO='none',
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS='',
        PIP_INDEX_URL='http://127.0.0.1:9/simple',  # the discard port: nobody listens
        PIP_RETRIES='1',
    )

    assert 'could not reach the package index; check the network' in sentence(result)


def test_an_unknown_ros_distribution_is_refused(repository: Path) -> None:
    # Not what `make test` was called with, which would win over the environment.
    environment = {k: v for k, v in os.environ.items() if not k.startswith('MAKE')}
    environment['PHYSIS_ROS_DISTRO'] = 'noetic'
    result = subprocess.run(
        ['make', 'venv'], cwd=repository, env=environment, capture_output=True, text=True
    )

    assert result.returncode != 0
    assert '`noetic`; it can be kilted, jazzy or none' in result.stderr
