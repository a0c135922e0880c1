"""The share folder is found from a source tree, a sourced workspace, and a plain install."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load_share_from(folder: Path, repository: Path) -> ModuleType:
    """Load physis_ros/share.py as if it were installed in `folder`."""
    file = folder / 'physis_ros' / 'share.py'
    file.parent.mkdir(parents=True)
    file.write_bytes((repository / 'physis_ros' / 'share.py').read_bytes())
    spec = importlib.util.spec_from_file_location('installed_share', file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_share(prefix: Path) -> Path:
    share = prefix / 'share' / 'physis_ros'
    share.mkdir(parents=True)
    (share / 'package.xml').write_text('<package/>')
    index = prefix / 'share' / 'ament_index' / 'resource_index' / 'packages'
    index.mkdir(parents=True)
    (index / 'physis_ros').write_text('')
    return share


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path / 'empty'))
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'empty'))


def test_a_source_tree_answers_for_itself(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed copy may be older than the file that was just edited."""
    tree = tmp_path / 'clone'
    share = load_share_from(tree, repository)
    (tree / 'package.xml').write_text('<package/>')
    make_share(tmp_path / 'prefix')
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'prefix'))

    assert share.share_dir() == tree


def test_a_sourced_workspace_comes_before_the_interpreters_prefix(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip('ament_index_python', reason='the ROS 2 wheels are not installed')
    share = load_share_from(tmp_path / 'site-packages', repository)
    in_workspace = make_share(tmp_path / 'workspace')
    make_share(tmp_path / 'prefix')
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path / 'workspace'))
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'prefix'))

    assert share.share_dir() == in_workspace


@pytest.mark.parametrize('ament_prefix_path', ['', None])
def test_a_plain_install_needs_nothing_sourced(
    ament_prefix_path: str | None,
    tmp_path: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = load_share_from(tmp_path / 'site-packages', repository)
    installed = make_share(tmp_path / 'prefix')
    monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'prefix'))
    if ament_prefix_path is None:
        monkeypatch.delenv('AMENT_PREFIX_PATH')
    else:
        monkeypatch.setenv('AMENT_PREFIX_PATH', ament_prefix_path)

    assert share.share_dir() == installed


def test_nowhere_names_the_places(tmp_path: Path, repository: Path) -> None:
    share = load_share_from(tmp_path / 'site-packages', repository)

    with pytest.raises(FileNotFoundError, match=r'share folder of physis_ros.*install.*pip'):
        share.share_dir()
