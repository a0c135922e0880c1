"""The demo model on any number of workers, and what happens when it cannot use an observation."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from replay import TIMEOUT_S, Recorded, draw, largest_error

from physis_core.errors import StreamError
from physis_core.models.registry import ModelSpec, describe
from physis_core.planning.modes import MODES, full_split, sequential
from physis_core.planning.plan import BatchRule
from physis_core.runtime.engine import Engine, StreamOptions

SPEC = ModelSpec('so101')
DESCRIPTION = describe(SPEC)
WORKERS = (1, 2, 3, 4, 8)
TRIES = 6
"""The model refuses observations older than a second: a busy machine may need another try."""


def run(engine: Engine, plan_slot: int) -> float:
    """The largest error of one stream's first chunks."""
    for _ in range(TRIES):
        recorded = Recorded(engine.open_stream(
            StreamOptions(seed=plan_slot, lead_ns=480_000_000)), DESCRIPTION, plan_slot)
        try:
            return largest_error(SPEC, recorded, recorded.run(8))
        except StreamError as error:
            assert 'the model was trained for' in str(error)
        finally:
            recorded.stream.close()
    pytest.skip('this machine is too busy')


def test_one_to_eight_workers_give_the_same_bits() -> None:
    for workers in WORKERS:
        with Engine(SPEC, full_split(DESCRIPTION.graph, workers)) as engine:
            assert run(engine, 0) == 0.0, workers


@pytest.mark.parametrize('mode', sorted(MODES))
def test_every_mode_on_two_workers(mode: str) -> None:
    plan = MODES[mode](DESCRIPTION.graph, 2)
    for rule, tolerance in ((BatchRule(), 0.0), (plan.batch, 2e-4)):
        with Engine(SPEC, replace(plan, batch=rule)) as engine:
            assert run(engine, 0) <= tolerance


def test_what_the_model_cannot_use_ends_that_stream_and_no_worker() -> None:
    with Engine(SPEC, sequential(DESCRIPTION.graph), streams=2) as engine:
        pids = engine.worker_pids
        stale = engine.open_stream(StreamOptions(lead_ns=480_000_000))
        stale.observe(draw(DESCRIPTION, np.random.default_rng(0)),
                      time.monotonic_ns() - 10_000_000_000)
        with pytest.raises(StreamError, match='chunk 0 cannot be computed: lead of'):
            stale.next_chunk(TIMEOUT_S)
        assert engine.worker_pids == pids
        assert run(engine, 1) == 0.0
