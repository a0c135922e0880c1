"""Two demos on one host do not meet, and nothing of a demo stays in shared memory."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import pytest

from physis_ros.demo import shared_memory
from physis_ros.demo.private_domain import PrivateDomain
from physis_ros.demo.shared_memory import sweep_fast_dds


def test_two_private_domains_differ() -> None:
    with PrivateDomain() as first, PrivateDomain() as second:
        assert first.domain_id != second.domain_id


def test_a_domain_is_free_again_afterwards() -> None:
    with PrivateDomain() as first:
        pass
    with PrivateDomain() as second:
        assert first.domain_id == second.domain_id


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_memory, '_YOUNG_S', -1.0)
    return tmp_path


def test_what_nobody_has_open_is_swept(folder: Path) -> None:
    for name in ('fastrtps_port7411', 'fastrtps_port7411_el', 'sem.fastrtps_port7411_mutex',
                 'fastdds_0123456789abcdef', 'fastdds_0123456789abcdef_el', 'somebody_elses',
                 'fastfood'):
        (folder / name).write_bytes(b'x')
    assert sweep_fast_dds(folder) == ['fastdds_0123456789abcdef', 'fastrtps_port7411']
    assert sorted(path.name for path in folder.iterdir()) == ['fastfood', 'somebody_elses']


def test_what_is_mapped_or_open_stays_with_all_its_files(folder: Path) -> None:
    mapped, opened = folder / 'fastdds_port7411', folder / 'fastdds_port7413_el'
    for path in (mapped, folder / 'fastdds_port7411_el', opened, folder / 'fastdds_port7413'):
        path.write_bytes(bytes(mmap.PAGESIZE))
    descriptor = os.open(mapped, os.O_RDWR)
    memory = mmap.mmap(descriptor, mmap.PAGESIZE)
    os.close(descriptor)
    with opened.open('rb'):
        assert sweep_fast_dds(folder) == []
    memory.close()
    assert sweep_fast_dds(folder) == ['fastdds_port7411', 'fastdds_port7413']


def test_what_is_locked_is_used_where_this_process_cannot_look(folder: Path) -> None:
    for name in ('fastdds_port7411', 'fastdds_port7411_el'):
        (folder / name).write_bytes(b'x')
    with (folder / 'fastdds_port7411_el').open('rb') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert shared_memory._own_and_free(folder / 'fastdds_port7411')
        assert not shared_memory._own_and_free(folder / 'fastdds_port7411_el')
    assert sweep_fast_dds(folder) == ['fastdds_port7411']


def test_what_is_young_may_be_about_to_be_mapped(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, '_YOUNG_S', 0.3)
    for name in ('fastdds_port7411', 'fastdds_port7413'):
        (tmp_path / name).write_bytes(b'x')
    unused, mapped = shared_memory._unused, []

    def look_then_map(folder: Path) -> dict[str, list[Path]]:
        found = unused(folder)
        if not mapped:
            with (folder / 'fastdds_port7413').open('r+b') as file:
                mapped.append(mmap.mmap(file.fileno(), 1))
        return found

    monkeypatch.setattr(shared_memory, '_unused', look_then_map)
    assert sweep_fast_dds(tmp_path) == ['fastdds_port7411']
    assert [path.name for path in tmp_path.iterdir()] == ['fastdds_port7413']
