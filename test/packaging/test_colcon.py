"""`colcon build` makes the same messages as pip, and a workspace that runs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from executables import assert_starts_no_node

MESSAGES = ('ActionChunk', 'StreamReport')
# What the build needs besides a compiler; the extra `colcon` has it.
TOOLS = ('colcon', 'cmake')
MODULES = ('ament_package', 'rosidl_adapter', 'rosidl_generator_py')

# Prints the type hashes that a real node advertises.
ADVERTISED = """
import json, rclpy, physis_ros.msg
rclpy.init()
node = rclpy.create_node('hashes')
hashes = {}
for name in ('ActionChunk', 'StreamReport'):
    publisher = node.create_publisher(getattr(physis_ros.msg, name), name, 1)
    (info,) = node.get_publishers_info_by_topic(publisher.topic)
    hashes[name] = str(info.topic_type_hash)
print(json.dumps([physis_ros.msg.__file__, hashes]))
node.destroy_node()
rclpy.shutdown()
"""
# Prints what the workspace offers besides messages.
OFFERED = """
import json
from importlib import metadata
import physis_core
from physis_ros.share import share_dir
print(json.dumps([
    physis_core.__file__,
    str(share_dir()),
    sorted(entry.name for entry in metadata.entry_points(group='physis.commands')),
]))
"""


def environment() -> dict[str, str]:
    """Return the environment for processes that use the ROS wheels of this interpreter."""
    bin_folder = str(Path(sys.executable).parent)
    return {
        **os.environ,
        'PATH': f'{bin_folder}:{os.environ["PATH"]}',
        'AMENT_PREFIX_PATH': sys.prefix,
        'CMAKE_PREFIX_PATH': sys.prefix,
    }


def missing_tools() -> list[str]:
    path = environment()['PATH']
    return [
        *(tool for tool in (*TOOLS, 'c++') if shutil.which(tool, path=path) is None),
        *(module for module in MODULES if importlib.util.find_spec(module) is None),
    ]


@pytest.fixture(scope='module')
def workspace(
    tmp_path_factory: pytest.TempPathFactory, copy_sources: Callable[[Path], Path]
) -> Path:
    """Build the source tree in a workspace of its own; returns the workspace."""
    if missing := missing_tools():
        pytest.skip(f'colcon build needs {", ".join(missing)} (extra `colcon`)')
    root = tmp_path_factory.mktemp('workspace')
    copy_sources(root / 'src' / 'physis')
    command = [
        'colcon',
        'build',
        '--symlink-install',
        '--cmake-args',
        '-DBUILD_TESTING=OFF',
        f'-DCMAKE_PROJECT_INCLUDE={Path(__file__).with_name("wheel_headers.cmake")}',
        f'-DPython3_EXECUTABLE={sys.executable}',
    ]
    result = subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return root


def run_sourced(workspace: Path, *command: str) -> str:
    """Run a command with the workspace sourced, outside the source tree; returns its output."""
    script = 'source install/setup.bash && exec "$@"'
    return subprocess.check_output(
        ['bash', '-c', script, 'bash', *command], cwd=workspace, env=environment(), text=True
    )


@pytest.mark.timeout(300)
def test_type_hashes_equal_those_of_the_pip_build(workspace: Path) -> None:
    from_colcon = run_sourced(workspace, sys.executable, '-c', ADVERTISED)
    from_pip = subprocess.check_output(
        [sys.executable, '-c', ADVERTISED], cwd=workspace, env=environment(), text=True
    )
    colcon_file, colcon_hashes = json.loads(from_colcon)
    pip_file, pip_hashes = json.loads(from_pip)

    assert Path(colcon_file).is_relative_to(workspace / 'install')
    assert not Path(pip_file).is_relative_to(workspace)
    assert all(pip_hashes[name].startswith('RIHS01_') for name in MESSAGES)
    assert colcon_hashes == pip_hashes


@pytest.mark.timeout(300)
def test_the_workspace_has_nodes_engine_and_share(workspace: Path) -> None:
    core, share, commands = json.loads(run_sourced(workspace, sys.executable, '-c', OFFERED))
    prefix = workspace / 'install' / 'physis_ros'

    assert Path(core).is_relative_to(prefix)
    assert Path(share) == prefix / 'share' / 'physis_ros'
    assert (Path(share) / 'config' / 'fastdds_shm.xml').is_file()
    assert {'demo', 'train'} <= set(commands)
    for executable in ('wam_node', 'servo_node', 'demo_robot', 'demo_controller'):
        script = prefix / 'lib' / 'physis_ros' / executable
        assert os.access(script, os.X_OK)
        assert_starts_no_node(script)


@pytest.mark.timeout(300)
def test_the_physis_command_runs(workspace: Path) -> None:
    assert 'usage: physis' in run_sourced(workspace, 'physis', '--help')


@pytest.mark.timeout(300)
def test_data_beside_the_code_is_installed(workspace: Path) -> None:
    """The recorded chunks, which this bench plays."""
    printed = run_sourced(workspace, 'physis', 'bench', 'handover', '--json')
    assert len(json.loads(printed)['rows']) == 16
