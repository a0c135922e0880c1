"""What a wheel holds besides code: weights, presets, configuration, entry points."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from executables import assert_starts_no_node

DATA_SUFFIXES = ('.json', '.md', '.npz', '.safetensors', '.yaml')


@pytest.fixture(scope='module')
def wheel(
    tmp_path_factory: pytest.TempPathFactory, copy_sources: Callable[[Path], Path]
) -> zipfile.ZipFile:
    """Build a wheel without the ROS messages, which needs neither network nor compiler."""
    sources = copy_sources(tmp_path_factory.mktemp('wheel') / 'physis')
    marker = sources / 'physis_core' / 'models' / 'deeply' / 'nested'
    marker.mkdir(parents=True)
    (marker / 'preset.yaml').write_text('a: 1\n')
    command = [sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation', '.']
    result = subprocess.run(
        command,
        cwd=sources,
        env={**os.environ, 'PHYSIS_ROS_DISTRO': 'none'},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = sources.glob('physis_ros-*.whl')
    return zipfile.ZipFile(built)


def test_every_module_is_in_the_wheel(wheel: zipfile.ZipFile, repository: Path) -> None:
    names = set(wheel.namelist())
    for package in ('physis_core', 'physis_ros'):
        for file in (repository / package).rglob('*.py'):
            relative = file.relative_to(repository)
            if relative.parts[:2] != ('physis_ros', 'msg'):
                assert str(relative) in names


def test_data_beside_the_code_is_in_the_wheel(wheel: zipfile.ZipFile, repository: Path) -> None:
    names = set(wheel.namelist())
    assert 'physis_core/models/deeply/nested/preset.yaml' in names
    for package in ('physis_core', 'physis_ros'):
        for file in (repository / package).rglob('*'):
            if file.suffix in DATA_SUFFIXES:
                assert str(file.relative_to(repository)) in names
    assert 'physis_ros/benches/so101_chunks.npz' in names


def test_the_share_folder_and_the_nodes_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    data = {name.partition('.data/data/')[2] for name in wheel.namelist() if '.data/data/' in name}
    assert {
        'share/physis_ros/package.xml',
        'share/physis_ros/config/fastdds_shm.xml',
        'share/physis_ros/msg/ActionChunk.msg',
        'share/ament_index/resource_index/packages/physis_ros',
        'share/ament_index/resource_index/rosidl_interfaces/physis_ros',
        'lib/physis_ros/wam_node',
        'lib/physis_ros/servo_node',
    } <= data


def test_worker_processes_that_import_an_executable_start_no_node(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """multiprocessing imports the parent's script under another name in each worker."""
    for name in wheel.namelist():
        if '.data/data/lib/physis_ros/' not in name:
            continue
        script = tmp_path / Path(name).name
        script.write_bytes(wheel.read(name))
        assert_starts_no_node(script)


def test_the_wheel_has_the_entry_points(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith('.dist-info/entry_points.txt'))
    text = wheel.read(name).decode()
    assert 'physis = physis_core.cli.main:main' in text
    assert '[physis.commands]' in text
