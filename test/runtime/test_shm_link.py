"""The ring in shared memory: order, bounds, reading in place, wake-ups."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from physis_core.models.protocol import TensorSpec
from physis_core.runtime.links.shm import Ring, ShmInlet, ShmOutlet, create_ring
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout
from physis_core.runtime.telemetry import EdgeMeter
from physis_core.shared_block import SharedBlock

CODEC = HeaderCodec(2)
LAYOUT = PacketLayout({'hidden': TensorSpec((3, 5)), 'latent': TensorSpec((2,), 'int64'),
                       'half': TensorSpec((7,), 'bfloat16')})


def pair(slots: int, wakes: list[str] | None = None) -> tuple[ShmOutlet, ShmInlet]:
    """Both ends, the receiving one attached as another process would."""
    block = create_ring(LAYOUT, CODEC, slots)
    heard = wakes if wakes is not None else []
    meter = EdgeMeter.create()
    there = SharedBlock.attach(block.address)
    return (ShmOutlet(Ring(block, LAYOUT, CODEC, slots), meter, lambda: heard.append('receiver')),
            ShmInlet(Ring(there, LAYOUT, CODEC, slots), meter, lambda: heard.append('sender')))


def message(index: int) -> tuple[ChunkState, dict[str, torch.Tensor]]:
    state = ChunkState(1, 2, index, 4, 5, 6, 7, 8, 9, 10, 11, 12, observation_ids=[index, -1])
    return state, {'hidden': torch.full((3, 5), float(index)), 'latent': torch.tensor([index, -1]),
                   'half': torch.full((7,), float(index), dtype=torch.bfloat16)}


def test_a_message_arrives_as_it_was_sent() -> None:
    outlet, inlet = pair(1)
    assert inlet.pull() is None
    state, tensors = message(3)
    assert outlet.try_send(state, tensors)
    assert inlet.pull() is None  # more may belong to it
    outlet.announce()
    got = inlet.pull()
    assert got is not None
    for name in ('stream', 'epoch', 'chunk', 'stage', 'deadline_ns', 'release_ns', 'due_ns',
                 'capture_ns', 'received_ns', 'started_ns', 'sent_ns', 'finished_ns',
                 'observation_ids'):
        assert getattr(got.state, name) == getattr(state, name)
    assert got.tensors.keys() == tensors.keys()
    assert all(torch.equal(got.tensors[name], tensors[name]) for name in tensors)


@given(st.integers(1, 4), st.lists(st.integers(0, 3), max_size=60))
def test_any_mix_of_sends_pulls_and_releases_keeps_order_and_contents(
        slots: int, actions: list[int]) -> None:
    outlet, inlet = pair(slots)
    sent = taken = 0
    held = []
    for action in actions:
        if action < 2:
            accepted = outlet.try_send(*message(sent))
            assert accepted == (sent - taken + len(held) < slots)  # full when all are in use
            sent += accepted
            outlet.announce()
        elif action == 2:
            got = inlet.pull()
            assert (got is None) == (sent == taken)
            if got is not None:
                assert got.state.chunk == taken
                held.append(got)
                taken += 1
        elif held:
            inlet.release(held.pop(len(held) // 2).slot)
        for one in held:  # what is held is not overwritten
            assert one.tensors['hidden'][0, 0] == one.state.chunk


def test_the_receiver_is_woken_by_news_and_a_refused_sender_by_room() -> None:
    wakes: list[str] = []
    outlet, inlet = pair(1, wakes)
    assert outlet.try_send(*message(0))
    assert wakes == []
    outlet.announce()
    assert wakes == ['receiver']
    got = inlet.pull()
    assert got is not None
    inlet.release(got.slot)
    assert wakes == ['receiver']  # the sender never found it full
    assert outlet.try_send(*message(1))
    assert not outlet.try_send(*message(2))
    outlet.announce()
    got = inlet.pull()
    assert got is not None
    inlet.release(got.slot)
    assert wakes[-1] == 'sender'


def test_the_memory_is_gone_with_its_owner() -> None:
    block = create_ring(LAYOUT, CODEC, 1)
    block.close()
    block.close()
    try:
        SharedBlock.attach(block.address)
    except OSError:
        return
    raise AssertionError('a closed block can still be attached')
