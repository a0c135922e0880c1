"""Handing a hidden state to another process: shared memory, gloo, multiprocessing.Pipe.

`shm` is what workers do: look at the doorbell for some microseconds, then sleep; `shm_sleep` sleeps
at once.
Two processes on CPUs of their own send a message back and forth; a hop is half of a round trip.
The transports take turns, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import numpy as np
import torch

from physis_core.errors import InputError, PhysisError
from physis_core.models.protocol import TensorSpec
from physis_core.runtime.bell import Bell, precise_sleeps
from physis_core.runtime.engine import EngineOptions
from physis_core.runtime.links.p2p import RECEIVER, SENDER, PeerGroup, Rendezvous
from physis_core.runtime.links.shm import Ring, ShmInlet, ShmOutlet, create_ring
from physis_core.runtime.packets import ChunkState, HeaderCodec, PacketLayout
from physis_core.runtime.telemetry import EdgeMeter
from physis_core.shared_block import SharedBlock
from physis_core.units import NS_PER_US

SIZES_BYTES = (256, 4 << 20)
_CODEC = HeaderCodec(4)
_TURNS = 5
_WARM_UP = 20
_IDLE_NS = 50_000_000
_TIMEOUT_S = 300.0
_LAST_WORDS_S = 5.0
"""Between the end of one process and the result of the other."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--rounds', type=int, default=1000,
                        help='round trips of 256 B a turn; a tenth of it for 4 MiB')
    parser.add_argument('--json', action='store_true', help='print one JSON object')


def run(args: argparse.Namespace) -> int:
    """Measure all transports and report."""
    if args.rounds < 10:
        raise InputError(f'--rounds is {args.rounds}; give at least 10')
    samples = _measure(args.rounds)
    result: dict[str, Any] = {'cpus': len(os.sched_getaffinity(0))}
    for size in SIZES_BYTES:
        of_size = {name: np.concatenate(samples[name, size]) / NS_PER_US for name in TRANSPORTS}
        for name, hops_us in of_size.items():
            result[f'{name}_{size}_p50_us'] = round(float(np.median(hops_us)), 2)
            result[f'{name}_{size}_p99_us'] = round(float(np.percentile(hops_us, 99)), 2)
        for other in ('gloo', 'pipe'):
            result[f'{other}_over_shm_{size}'] = round(
                float(np.median(of_size[other]) / np.median(of_size['shm'])), 2)
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f'{name:>28}  {value}')
    return 0


# -- two processes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Meeting:
    """Where the two ends find each other: shared memory, and a file for each direction."""

    words: str
    rings: dict[int, tuple[str, str]]
    files: tuple[str, str]


def _measure(rounds: int) -> dict[tuple[str, int], list[np.ndarray]]:
    """Hops [ns] by transport and size, turn by turn."""
    words, files = SharedBlock.create(64), (Rendezvous(), Rendezvous())
    rings = {size: tuple(create_ring(_layout(size), _CODEC, 2) for _ in range(2))
             for size in SIZES_BYTES}
    meeting = _Meeting(words.address, {size: (a.address, b.address)
                                       for size, (a, b) in rings.items()},
                       (files[0].address, files[1].address))
    context = multiprocessing.get_context('forkserver')
    pipes = context.Pipe()
    results, results_end = context.Pipe(duplex=False)
    ends = [context.Process(target=_end, args=(index, meeting, pipes[index], results_end, rounds),
                            daemon=True) for index in range(2)]
    for end in ends:
        end.start()
    try:
        if not wait([results, *(end.sentinel for end in ends)], _TIMEOUT_S):
            raise PhysisError(f'no result within {_TIMEOUT_S:g} s; use fewer --rounds')
        if not results.poll(_LAST_WORDS_S):
            raise PhysisError('a process of the measurement ended before it had a result; what it '
                              'wrote above says why')
        samples: dict[tuple[str, int], list[np.ndarray]] = results.recv()
        return samples
    finally:
        for end in ends:
            end.kill()
            end.join()
        for file in files:
            file.close()
        for block in (words, *(ring for pair in rings.values() for ring in pair)):
            block.close()


def _end(index: int, meeting: _Meeting, pipe: Connection, results: Connection, rounds: int
         ) -> None:
    """One of the two processes; the first one measures."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[index % len(cpus)]})
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    precise_sleeps()
    torch.set_num_threads(1)
    groups = [PeerGroup('gloo', file, SENDER if sender == index else RECEIVER)
              for sender, file in enumerate(meeting.files)]
    links: dict[tuple[str, int], _Transport] = {}
    for size in SIZES_BYTES:
        sleeping = links['shm_sleep', size] = _Shm(index, meeting, size)
        links['shm', size] = _Shm(index, meeting, size, sleeping)
        links['gloo', size] = _Gloo(groups[index], groups[1 - index], size)
        links['pipe', size] = _Pipe(pipe, size)
    samples: dict[tuple[str, int], list[np.ndarray]] = {key: [] for key in links}
    for _ in range(_TURNS):
        for key, link in links.items():
            count = rounds if key[1] == SIZES_BYTES[0] else max(rounds // 10, 10)
            samples[key].append((_ping if index == 0 else _pong)(link, count))
    if index == 0:
        results.send(samples)


def _ping(link: _Transport, count: int) -> np.ndarray:
    hops_ns = np.zeros(count)
    for turn in range(-_WARM_UP, count):
        start_ns = time.perf_counter_ns()
        link.send()
        link.receive()
        if turn >= 0:
            hops_ns[turn] = (time.perf_counter_ns() - start_ns) / 2
    return hops_ns


def _pong(link: _Transport, count: int) -> np.ndarray:
    for _ in range(_WARM_UP + count):
        link.receive()
        link.send()
    return np.zeros(0)


# -- transports --------------------------------------------------------------------------------

TRANSPORTS = ('shm', 'shm_sleep', 'gloo', 'pipe')


class _Transport(Protocol):
    """One end of something that carries a hidden state."""

    def send(self) -> None:
        """Send it."""
        ...

    def receive(self) -> None:
        """Wait until it is here."""
        ...


class _Shm:
    """The engine's own ring and bell."""

    def __init__(self, index: int, meeting: _Meeting, size: int, like: _Shm | None = None) -> None:
        """``like``: share its ring, and look before sleeping as the engine's workers do."""
        words = np.frombuffer(SharedBlock.attach(meeting.words).memory, np.uint32)
        self._bell = Bell(words, index, ringer=index, spin=EngineOptions().spin if like else 0)
        ring = Bell(words, 1 - index, ringer=index).ring
        out, back = (SharedBlock.attach(meeting.rings[size][end]) for end in (index, 1 - index))
        meter = EdgeMeter.create()
        self._outlet: ShmOutlet = like._outlet if like else ShmOutlet(
            Ring(out, _layout(size), _CODEC, 2), meter, ring)
        self._inlet: ShmInlet = like._inlet if like else ShmInlet(
            Ring(back, _layout(size), _CODEC, 2), meter, ring)
        self._tensors = {'hidden': torch.zeros(size // 4)}

    def send(self) -> None:
        self._outlet.try_send(ChunkState(0, 0, 0, observation_ids=[-1] * 4), self._tensors)
        self._outlet.announce()

    def receive(self) -> None:
        while True:
            seen = self._bell.read()
            message = self._inlet.pull()
            if message is not None:
                self._inlet.release(message.slot)
                return
            self._bell.wait(seen, _IDLE_NS)


class _Gloo:
    """`torch.distributed` point to point, tensors allocated once."""

    def __init__(self, out: PeerGroup, back: PeerGroup, size: int) -> None:
        self._out, self._back = out, back
        self._tensor = torch.zeros(size // 4)

    def send(self) -> None:
        self._out.transfer(self._tensor).wait()

    def receive(self) -> None:
        self._back.transfer(self._tensor).wait()


class _Pipe:
    """An array through a pipe of the standard library, as its users send it."""

    def __init__(self, pipe: Connection, size: int) -> None:
        self._pipe = pipe
        self._array = np.zeros(size // 4, np.float32)

    def send(self) -> None:
        self._pipe.send(self._array)

    def receive(self) -> None:
        self._pipe.recv()


def _layout(size: int) -> PacketLayout:
    return PacketLayout({'hidden': TensorSpec((size // 4,))})
