"""The link over `torch.distributed` (gloo on loopback): order, bounds, lost peers, the oracle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from replay import TIMEOUT_S, Recorded, largest_error, tiny

from physis_core.errors import InputError, PlanError, WorkerLost
from physis_core.models.protocol import TensorSpec
from physis_core.models.registry import describe
from physis_core.planning.modes import MODES
from physis_core.planning.plan import BatchRule
from physis_core.runtime.engine import Engine, StreamOptions
from physis_core.runtime.links.p2p import (
    RECEIVER,
    SENDER,
    Connection,
    P2pInlet,
    P2pOutlet,
    PeerGroup,
    Rendezvous,
)
from physis_core.runtime.links.pieces import BatchConnection, PiecesInlet, PiecesOutlet
from physis_core.runtime.links.protocol import Message
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout
from physis_core.runtime.telemetry import EdgeMeter

LAYOUT = PacketLayout({'hidden': TensorSpec((4, 8)), 'latent': TensorSpec((3,), 'bfloat16')})
SPEC = tiny(kv_mode='cleaner_neighbour')
DESCRIPTION = describe(SPEC)


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('GLOO_SOCKET_IFNAME', 'lo')


def pair(slots: int) -> tuple[P2pOutlet, P2pInlet, threading.Semaphore, threading.Semaphore]:
    """Both ends in this process, and what their wake-ups count."""
    meeting = Rendezvous()
    room, news = threading.Semaphore(0), threading.Semaphore(0)

    def end(which: int) -> Connection:
        return Connection('gloo', meeting.address, which, LAYOUT, HeaderCodec(2), slots)

    with ThreadPoolExecutor(2) as both:
        sender, receiver = both.map(end, (SENDER, RECEIVER))
    meeting.close()
    meter = EdgeMeter.create()
    return (P2pOutlet(sender, meter, room.release), P2pInlet(receiver, meter, news.release),
            room, news)


def message(index: int) -> tuple[ChunkState, dict[str, torch.Tensor]]:
    return (ChunkState(1, 2, index, observation_ids=[index, -1]),
            {'hidden': torch.full((4, 8), float(index)),
             'latent': torch.full((3,), float(index), dtype=torch.bfloat16)})


def taken(pull: Callable[[], Message | None], news: threading.Semaphore) -> Message:
    assert news.acquire(timeout=TIMEOUT_S)
    got = pull()
    assert got is not None
    return got


def test_messages_arrive_in_order_and_a_full_link_refuses_until_there_is_room() -> None:
    outlet, inlet, room, news = pair(slots=2)
    assert inlet.pull() is None
    sent = 0
    for turn in range(30):
        while outlet.try_send(*message(sent)):
            sent += 1
        assert sent <= turn + 2 * 2  # two sends and two receives
        got = taken(inlet.pull, news)
        assert got.state.chunk == turn
        assert got.state.observation_ids == [turn, -1]
        assert (got.tensors['hidden'] == turn).all()
        assert (got.tensors['latent'] == turn).all()
        inlet.release(got.slot)
        assert room.acquire(timeout=TIMEOUT_S)


@pytest.mark.parametrize('pieces', [False, True])
def test_an_edge_is_warm_before_its_first_message(
        pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end has transferred one message when it is made, and none is left in the way."""
    transfers: list[int] = []
    transfer = PeerGroup.transfer

    def counted(group: PeerGroup, tensor: torch.Tensor) -> torch.distributed.Work:
        transfers.append(group._end)
        return transfer(group, tensor)

    monkeypatch.setattr(PeerGroup, 'transfer', counted)
    meeting = Rendezvous()

    def end(which: int) -> object:
        if pieces:
            return BatchConnection(meeting.address, which, LAYOUT, HeaderCodec(2), 2, rows=1)
        return Connection('gloo', meeting.address, which, LAYOUT, HeaderCodec(2), 2)

    with ThreadPoolExecutor(2) as both:
        list(both.map(end, (SENDER, RECEIVER)))
    meeting.close()
    assert sorted(transfers) == [SENDER, RECEIVER]


def test_an_end_whose_peer_does_not_come_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('physis_core.runtime.links.p2p._JOIN_TIMEOUT_S', 0.2)
    meeting = Rendezvous()
    with pytest.raises(WorkerLost, match=r'gloo link did not answer within 0\.2 s'):
        Connection('gloo', meeting.address, SENDER, LAYOUT, HeaderCodec(1), 1)
    meeting.close()


PEER = """
import sys
from physis_core.models.protocol import TensorSpec
from physis_core.runtime.links.p2p import Connection
from physis_core.runtime.packets import HeaderCodec, PacketLayout
layout = PacketLayout({'hidden': TensorSpec((4, 8)), 'latent': TensorSpec((3,), 'bfloat16')})
end = Connection('gloo', sys.argv[1], int(sys.argv[2]), layout, HeaderCodec(2), 2)
print('joined', flush=True)
end.transfer(0)
sys.stdin.read()
"""


@pytest.mark.parametrize('end', [SENDER, RECEIVER])
def test_an_end_outlives_its_peer(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('physis_core.runtime.links.p2p._JOIN_TIMEOUT_S', TIMEOUT_S)
    meeting = Rendezvous()
    with subprocess.Popen([sys.executable, '-c', PEER, meeting.address, str(1 - end)],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        here = Connection('gloo', meeting.address, end, LAYOUT, HeaderCodec(2), 2)
        assert peer.stdout is not None
        assert peer.stdout.readline() == b'joined\n'
        peer.kill()
    meeting.close()
    with pytest.raises(RuntimeError):  # from the wait, which is a thread's own
        here.transfer(0)(here._group.timeout)
    if end == SENDER:
        outlet = P2pOutlet(here, EdgeMeter.create(), lambda: None)
        for index in range(3):
            outlet.try_send(*message(index))
    else:
        inlet = P2pInlet(here, EdgeMeter.create(), lambda: None)
        inlet.release(0)
        assert inlet.pull() is None


@pytest.mark.parametrize('alone', [True, False])
def test_messages_in_pieces_match_the_oracle(alone: bool) -> None:
    spec = tiny()
    plan = replace(MODES['streamdiffusionv2'](describe(spec).graph, 3), link='gloo_pieces')
    if alone:
        plan = replace(plan, batch=BatchRule())
    with Engine(spec, plan) as engine:
        recorded = Recorded(engine.open_stream(), describe(spec))
        error = largest_error(spec, recorded, recorded.run(12))
    assert error == 0.0 if alone else error < 1e-4


def test_a_batch_crosses_in_pieces_as_a_whole() -> None:
    meeting = Rendezvous()
    news = threading.Semaphore(0)

    def end(which: int) -> BatchConnection:
        return BatchConnection(meeting.address, which, LAYOUT, HeaderCodec(2), 2, rows=3)

    with ThreadPoolExecutor(2) as both:
        sender, receiver = both.map(end, (SENDER, RECEIVER))
    meeting.close()
    meter = EdgeMeter.create()
    outlet = PiecesOutlet(sender, meter, lambda: None)
    inlet = PiecesInlet(receiver, meter, news.release)
    sent = 0
    for rows in (3, 1, 2, 3, 3):
        for _ in range(rows):
            assert outlet.try_send(*message(sent))
            sent += 1
        outlet.announce()
        assert news.acquire(timeout=TIMEOUT_S)
        got = [inlet.pull() for _ in range(rows + 1)]
        assert got.pop() is None
        for index, one in enumerate(got, sent - rows):
            assert one is not None
            assert one.state.chunk == index
            assert (one.tensors['hidden'] == index).all()
            inlet.release(one.slot)


def test_plans_over_gloo_match_the_oracle_and_survive_a_lost_worker() -> None:
    plans = [replace(MODES[mode](DESCRIPTION.graph, 3), link='gloo')
             for mode in ('full_split', 'wave')]
    with Engine(SPEC, plans) as engine:
        for kind in (None, signal.SIGKILL, signal.SIGSTOP):
            if kind is not None:
                stream = engine.open_stream()
                os.kill(engine.worker_pids[1], kind)
                with pytest.raises(WorkerLost):
                    stream.next_chunk(TIMEOUT_S)
            streams = [Recorded(engine.open_stream(StreamOptions(seed=slot)), DESCRIPTION, slot)
                       for slot in range(2)]
            for recorded in streams:
                assert largest_error(SPEC, recorded, recorded.run(6)) == 0.0
                recorded.stream.close()
        between = [meter for key, meter in engine.edge_meters().items() if key.kind == 'chunk']
        assert all(meter.messages > 0 and meter.mean_wait_ns > 0 for meter in between)


def test_one_engine_has_one_kind_of_link() -> None:
    plans = [replace(MODES['full_split'](DESCRIPTION.graph, 2), link=link)
             for link in ('gloo', 'shm')]
    with pytest.raises(PlanError, match='give all plans of an engine one link'):
        Engine(SPEC, plans)


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason='this PyTorch has NCCL')
def test_nccl_where_there_is_none_is_refused() -> None:
    meeting = Rendezvous()
    with pytest.raises(InputError, match='use `gloo`'):
        Connection('nccl', meeting.address, SENDER, LAYOUT, HeaderCodec(2), 1)
    meeting.close()
