"""Memory without a name: found by its address as long as its owner keeps it open."""

from __future__ import annotations

import pytest

from physis_core.shared_block import SharedBlock, is_open


def place(block: SharedBlock) -> str:
    return block.address.rpartition(':')[0]


def test_two_ends_see_the_same_memory() -> None:
    owner = SharedBlock.create(64)
    other = SharedBlock.attach(owner.address)
    owner.memory[3] = 7
    assert other.memory[3] == 7 and len(other.memory) == 64
    owner.close()
    assert other.memory[3] == 7  # a view keeps it


def test_a_place_that_is_used_again_is_not_taken_for_the_old_block() -> None:
    old = SharedBlock.create(64)
    old.close()
    new = SharedBlock.create(64)
    try:
        assert place(new) == place(old)  # the kernel gives the lowest free place
        assert (is_open(old.address), is_open(new.address)) == (False, True)
        with pytest.raises(FileNotFoundError, match='its owner has closed it'):
            SharedBlock.attach(old.address)
    finally:
        new.close()
    assert not is_open(new.address)
