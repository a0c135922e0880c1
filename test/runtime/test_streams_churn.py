"""Streams come and go by the hundred: those who stay get the same bits, and nothing is left."""

from __future__ import annotations

import gc
import os
import random

import numpy as np
from replay import Recorded, draw, largest_error, tiny

from physis_core.cli.footprint import footprint
from physis_core.models.registry import describe
from physis_core.planning.plan import BatchRule, Plan, ranks_from_devices
from physis_core.runtime.engine import Engine, StreamOptions
from physis_core.runtime.provision import DeviceProvision, Provision
from physis_core.runtime.stream import Stream

SPEC = tiny()
DESCRIPTION = describe(SPEC)
GRAPH = DESCRIPTION.graph
DEVICES, STAY, GUESTS, OPENS = 2, 2, 3, 500
RULE = BatchRule(4, across_steps=True)
TOLERANCE = 2e-5
"""Batched matrix products add in another order; outputs are in [-1, 1]."""


def plan(random_: random.Random) -> Plan:
    """Stages anywhere."""
    return Plan('anywhere', GRAPH, ranks_from_devices(
        [random_.randrange(DEVICES) for _ in range(GRAPH.stages)]), RULE, max_in_flight=2)


def engine() -> Engine:
    own = DeviceProvision(tuple(range(GRAPH.blocks)), GRAPH.stages * (STAY + GUESTS))
    return Engine(SPEC, Provision(GRAPH, (own,) * DEVICES, STAY + GUESTS, RULE,
                                  in_flight=2 * (STAY + GUESTS)))


def visit(engine: Engine, opens: int, stay: list[Recorded], taken: list[list],
          dice: random.Random) -> None:
    """Open and close so many guests in random order; those who stay go on meanwhile."""
    guests: list[Stream] = []
    for number in range(opens):
        if len(guests) == GUESTS or (guests and dice.random() < 0.5):
            guests.pop(dice.randrange(len(guests))).close()
        guest = engine.open_stream(StreamOptions(seed=number), plan(dice))
        guest.observe(draw(DESCRIPTION, np.random.default_rng(number)), 0)
        guests.append(guest)
        if dice.random() < 0.1:
            guest.next_chunk(0.05)
        if number % 25 == 0:
            for recorded, chunks in zip(stay, taken, strict=True):
                chunks.append(recorded.chunk())
                recorded.observe()
    for guest in guests:
        guest.close()


def test_five_hundred_opens_and_closes_disturb_nobody_and_leave_nothing() -> None:
    dice = random.Random(5)
    with engine() as engine_:
        stay = [Recorded(engine_.open_stream(StreamOptions(seed=slot), plan(dice)), DESCRIPTION,
                         slot) for slot in range(STAY)]
        for recorded in stay:
            recorded.observe()
        taken: list[list] = [[] for _ in stay]
        visit(engine_, 60, stay, taken, dice)  # makes the links that all later ones share
        pids = [os.getpid(), *engine_.worker_pids]
        gc.collect()
        before = footprint(pids)
        visit(engine_, OPENS, stay, taken, dice)
        gc.collect()
        after = footprint(pids)
        assert after.processes == before.processes
        assert after.threads == before.threads
        assert after.descriptors <= before.descriptors
        assert after.shared_blocks <= before.shared_blocks
        assert after.resident_bytes - before.resident_bytes < 8e6
        for recorded, chunks in zip(stay, taken, strict=True):
            assert largest_error(SPEC, recorded, chunks) <= TOLERANCE
        for recorded in stay:
            recorded.stream.close()
        refilled = [engine_.open_stream(StreamOptions(), plan(dice))
                    for _ in range(STAY + GUESTS)]  # no slot and no KV entry has leaked
        assert len({stream.slot for stream in refilled}) == STAY + GUESTS
