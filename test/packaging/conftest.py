"""A copy of the sources, so that building them leaves the source tree alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

NOT_SOURCES = shutil.ignore_patterns(
    '.*', '__pycache__', '*.egg-info', '*.so', 'build', 'dist', 'install', 'log', 'out'
)


@pytest.fixture(scope='session')
def copy_sources(repository: Path) -> Callable[[Path], Path]:
    """Return a function that copies the sources, without anything built, to a new folder."""

    def copy(target: Path) -> Path:
        shutil.copytree(repository, target, ignore=NOT_SOURCES)
        shutil.rmtree(target / 'physis_ros' / 'msg', ignore_errors=True)  # generated in place
        shutil.copytree(repository / '.ci', target / '.ci')
        return target

    return copy
