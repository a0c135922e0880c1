"""A stream from open to close: observations, resets, pauses, backpressure, refusals."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from replay import TIMEOUT_S, Recorded, draw, largest_error, tiny

from physis_core.errors import InputError, OrderViolation, PlanError, Refused, StreamError
from physis_core.graph import KVMode, StageGraph
from physis_core.models.registry import describe
from physis_core.planning.modes import MODES, full_split, streamdiffusionv2
from physis_core.planning.plan import Plan
from physis_core.runtime.engine import Engine, StreamOptions
from physis_core.runtime.packets import ChunkState
from physis_core.runtime.stream import Stream
from physis_core.runtime.virtual import VirtualModel

SPEC = tiny(late_binding=True, renoise=True, prompt=4, sinks=1)
DESCRIPTION = describe(SPEC)
PLANS = [MODES[mode](DESCRIPTION.graph, 3) for mode in ('full_split', 'wave', 'sequential')]
PROMPT = {'prompt': np.linspace(-1, 1, 4, dtype=np.float32)}


@pytest.fixture(scope='module')
def engine() -> Iterator[Engine]:
    with Engine(SPEC, PLANS) as engine:
        yield engine


@pytest.fixture
def stream(engine: Engine) -> Iterator[Stream]:
    stream = engine.open_stream(StreamOptions(prompt=PROMPT))
    yield stream
    stream.close()


def seen(stream: Stream) -> int:
    return stream.observe(draw(DESCRIPTION, np.random.default_rng(0)), time.monotonic_ns())


# -- observations ------------------------------------------------------------------------------


def test_late_binding_renoise_and_prompt_match_the_oracle(engine: Engine) -> None:
    streams = [Recorded(engine.open_stream(StreamOptions(seed=slot, lead_ns=10**8, prompt=PROMPT)),
                        DESCRIPTION, slot) for slot in range(3)]
    for recorded in streams:
        chunks = recorded.run(12)
        assert largest_error(SPEC, recorded, chunks, PROMPT) == 0.0
        recorded.stream.close()


def test_no_chunk_without_an_observation_and_the_first_one_counts(stream: Stream) -> None:
    assert stream.next_chunk(0.1) is None
    assert seen(stream) == 1
    chunk = stream.next_chunk(TIMEOUT_S)
    assert chunk is not None
    assert chunk.observation_ids[0] == 1


def test_the_newest_observation_wins_and_its_times_travel_with_the_chunk(stream: Stream) -> None:
    stream.pause()
    for _ in range(9):
        seen(stream)
    before_ns = time.monotonic_ns()
    capture_ns = before_ns - 5
    stream.observe(draw(DESCRIPTION, np.random.default_rng(1)), capture_ns)
    stream.pause(False)
    chunk = stream.next_chunk(TIMEOUT_S)
    assert chunk is not None
    assert set(chunk.observation_ids) == {10}
    assert chunk.capture_ns == capture_ns
    assert (before_ns <= chunk.received_ns <= chunk.release_ns <= chunk.started_ns
            <= chunk.finished_ns <= time.monotonic_ns())


@pytest.mark.parametrize(('bad', 'words'), [
    ({}, 'lacks `state`'),
    ({'state': np.zeros(5, np.float32)}, r'float32 \[5\], expected float32 \[6\]'),
    ({'state': np.zeros(6)}, 'float64'),
    ({'state': np.full(6, np.nan, np.float32)}, 'NaN'),
    ({'state': np.zeros(6, np.float32), 'camera': np.zeros(1)}, 'unknown part `camera`'),
])
def test_a_bad_observation_is_refused_and_the_last_good_one_stays(
        stream: Stream, bad: dict[str, np.ndarray], words: str) -> None:
    stream.pause()
    identity = seen(stream)
    with pytest.raises(InputError, match=words):
        stream.observe(bad, 0)
    stream.pause(False)
    chunk = stream.next_chunk(TIMEOUT_S)
    assert chunk is not None
    assert chunk.observation_ids[0] == identity


# -- reset, pause, close -----------------------------------------------------------------------


def test_a_reset_drops_everything_and_starts_over_like_a_new_stream(engine: Engine) -> None:
    recorded = Recorded(engine.open_stream(StreamOptions(prompt=PROMPT)), DESCRIPTION)
    recorded.run(5)
    epochs = [recorded.stream.epoch]
    for _ in range(6):
        epochs.append(recorded.stream.reset())
        assert recorded.stream.next_chunk(0.02) is None  # what was seen before does not count
        chunks = recorded.run(5)
        assert {chunk.epoch for chunk in chunks} == {epochs[-1]}
        assert largest_error(SPEC, recorded, chunks, PROMPT) == 0.0
    assert epochs == sorted(set(epochs))
    recorded.stream.close()


def test_resets_at_any_moment_never_deliver_an_old_epoch(engine: Engine) -> None:
    stream = engine.open_stream(StreamOptions(prompt=PROMPT))
    random = np.random.default_rng(0)
    for _ in range(60):
        epoch = stream.reset()
        seen(stream)
        time.sleep(random.uniform(0.0, 0.004))
        if random.random() < 0.5:
            chunk = stream.next_chunk(TIMEOUT_S)
            assert chunk is not None
            assert (chunk.epoch, chunk.chunk) == (epoch, 0)
    stream.close()


def test_a_paused_stream_finishes_what_is_in_flight_and_no_more(stream: Stream) -> None:
    seen(stream)
    assert stream.next_chunk(TIMEOUT_S) is not None
    stream.pause()
    while stream.next_chunk(0.3) is not None:
        pass
    assert stream.in_flight == 0
    stream.pause(False)
    assert stream.next_chunk(TIMEOUT_S) is not None


def test_a_closed_stream_says_so_and_gives_its_slot_back(engine: Engine) -> None:
    for _ in range(3):
        streams = [engine.open_stream(StreamOptions(prompt=PROMPT)) for _ in PLANS]
        with pytest.raises(Refused, match='all 3 stream slots'):
            engine.open_stream(StreamOptions(prompt=PROMPT))
        for stream in streams:
            seen(stream)
        for stream in streams:
            assert stream.next_chunk(TIMEOUT_S) is not None
            stream.close()
            stream.close()
            with pytest.raises(StreamError, match='closed'):
                seen(stream)
            with pytest.raises(StreamError, match='closed'):
                stream.reset()


def test_a_reset_that_a_close_has_overtaken_leaves_the_next_stream_there_alone(
        engine: Engine) -> None:
    closed = engine.open_stream(StreamOptions(prompt=PROMPT))
    change, at, go = closed._change, threading.Event(), threading.Event()

    def late(stream: Stream, what: str) -> None:
        at.set()
        go.wait(TIMEOUT_S)
        change(stream, what)

    closed._change = late  # type: ignore[method-assign]
    told: list[StreamError] = []

    def reset() -> None:
        try:
            closed.reset()
        except StreamError as error:
            told.append(error)

    resetting = threading.Thread(target=reset)
    resetting.start()
    assert at.wait(TIMEOUT_S)
    closed._change = change  # type: ignore[method-assign]
    closed.close()
    recorded = Recorded(engine.open_stream(StreamOptions(prompt=PROMPT)), DESCRIPTION)
    assert recorded.stream.slot == closed.slot
    go.set()
    resetting.join(TIMEOUT_S)
    assert 'closed' in str(told[0])
    assert largest_error(SPEC, recorded, recorded.run(5), PROMPT) == 0.0
    recorded.stream.close()


def test_whoever_waits_is_told_when_the_stream_is_closed(stream: Stream) -> None:
    told: list[StreamError] = []

    def wait() -> None:
        try:
            stream.next_chunk()
        except StreamError as error:
            told.append(error)

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    stream.close()
    for waiter in waiters:
        waiter.join(TIMEOUT_S)
    assert len(told) == len(waiters)
    assert all('closed' in str(error) for error in told)


def test_finished_chunks_can_be_taken_after_the_end_and_then_it_is_said(stream: Stream) -> None:
    seen(stream)
    assert stream.next_chunk(TIMEOUT_S) is not None
    until_s = time.monotonic() + TIMEOUT_S
    while stream.completed < 4 and time.monotonic() < until_s:
        time.sleep(0.01)
    stream.close()
    for chunk in range(1, 4):
        left = stream.next_chunk(0)
        assert left is not None
        assert left.chunk == chunk
    with pytest.raises(StreamError, match='closed'):
        for _ in range(stream.options.queue_chunks + stream.plan.max_in_flight):
            stream.next_chunk(0)
    with pytest.raises(StreamError, match='closed'):
        stream.next_chunk()


@pytest.mark.parametrize('timeout_s', [-1.0, 0, float('nan')])
def test_a_timeout_that_is_over_returns_at_once(stream: Stream, timeout_s: float) -> None:
    assert stream.next_chunk(timeout_s) is None


# -- bounds ------------------------------------------------------------------------------------


def test_backpressure_reaches_the_source(stream: Stream) -> None:
    seen(stream)
    limit = stream.options.queue_chunks + stream.plan.max_in_flight
    until_s = time.monotonic() + 20
    while stream.completed < stream.options.queue_chunks and time.monotonic() < until_s:
        time.sleep(0.01)
    time.sleep(0.1)
    assert stream.options.queue_chunks <= stream.completed <= stream.released <= limit
    for expected in range(3 * limit):  # and nothing was lost meanwhile
        chunk = stream.next_chunk(TIMEOUT_S)
        assert chunk is not None
        assert chunk.chunk == expected


def test_the_cap_on_chunks_in_flight_holds() -> None:
    model = VirtualModel(StageGraph(steps=2, blocks=4), 0.0, 300.0)
    plan = replace(full_split(model.graph, 8), max_in_flight=3)
    with Engine(model, plan) as engine:
        stream = engine.open_stream()
        highest = 0
        for _ in range(50):
            highest = max(highest, stream.in_flight)
            assert stream.next_chunk(TIMEOUT_S) is not None
    assert 1 <= highest <= 3


def test_a_paced_source_keeps_its_beat_from_release_to_release() -> None:
    model = VirtualModel(StageGraph(steps=1, blocks=2), 0.0, 100.0)
    with Engine(model, full_split(model.graph, 2)) as engine:
        stream = engine.open_stream(StreamOptions(period_ns=4_000_000, lead_ns=7_000_000))
        chunks = [stream.next_chunk(TIMEOUT_S) for _ in range(20)]
    for before, after in itertools.pairwise(chunks):
        assert before is not None
        assert after is not None
        assert after.release_ns - before.release_ns >= 4_000_000  # never faster
        assert after.due_ns == after.release_ns + 7_000_000


# -- order and refusals ------------------------------------------------------------------------


@pytest.mark.parametrize('chunk', [0, 7])
def test_a_chunk_out_of_order_ends_its_stream_with_a_message_and_no_other(
        engine: Engine, chunk: int) -> None:
    victim, other = (engine.open_stream(StreamOptions(prompt=PROMPT)) for _ in range(2))
    for stream in (victim, other):
        seen(stream)
        assert stream.next_chunk(TIMEOUT_S) is not None
    token = ChunkState(victim.slot, victim.epoch, chunk, observation_ids=[-1, -1])
    with engine._lock:
        entrance = engine._wiring.entrances[victim.plan.device_of(0)]
        assert entrance.try_send(token, {})
        entrance.announce()
    with pytest.raises(OrderViolation, match=f'chunk {chunk} arrived at step 0 block 0 after'):
        while True:
            victim.next_chunk(TIMEOUT_S)
    for _ in range(20):
        assert other.next_chunk(TIMEOUT_S) is not None
    again = Recorded(engine.open_stream(StreamOptions(prompt=PROMPT)), DESCRIPTION)
    assert largest_error(SPEC, again, again.run(4), PROMPT) == 0.0
    again.stream.close()
    other.close()


def test_a_bad_prompt_is_refused_and_takes_no_slot(engine: Engine) -> None:
    for prompt in ({}, {'prompt': np.zeros(3, np.float32)}, {**PROMPT, 'more': np.zeros(1)}):
        with pytest.raises(InputError, match='prompt'):
            engine.open_stream(StreamOptions(prompt=prompt))
    streams = [engine.open_stream(StreamOptions(prompt=PROMPT)) for _ in PLANS]
    for stream in streams:
        stream.close()


def test_a_plan_for_another_model_is_refused_before_anything_starts() -> None:
    with pytest.raises(PlanError, match='plan for this model'):
        Engine(SPEC, full_split(StageGraph(1, 1), 1))
    with pytest.raises(InputError, match='at least one stream slot'):
        Engine(SPEC, [])


def test_an_engine_that_cannot_build_its_model_says_why() -> None:
    plan: Plan = streamdiffusionv2(StageGraph(2, 3, KVMode.SAME_STEP, window_chunks=3), 2)
    with pytest.raises(InputError, match='does not divide into'):
        Engine(tiny(dim=15), plan)


def test_a_closed_engine_ends_its_streams() -> None:
    with Engine(SPEC, PLANS[0]) as engine:
        stream = engine.open_stream(StreamOptions(prompt=PROMPT))
    engine.close()
    for action in (stream.next_chunk, stream.reset, lambda: engine.open_stream(
            StreamOptions(prompt=PROMPT))):
        with pytest.raises(StreamError, match='engine was closed'):
            action()


# -- lateness ----------------------------------------------------------------------------------


def test_a_stream_that_skips_when_late_leaves_beats_empty_and_loses_no_chunk() -> None:
    """A chunk takes 80 ms and is due after 20: without skipping three would be under way."""
    graph = StageGraph(steps=2, blocks=2)
    plan = replace(full_split(graph, 1), max_in_flight=3)
    with Engine(VirtualModel(graph, 20_000, 0), plan) as engine:
        stream = engine.open_stream(StreamOptions(
            period_ns=30_000_000, lead_ns=20_000_000, skip_late=True))
        chunks = [stream.next_chunk(TIMEOUT_S) for _ in range(6)]
        assert [chunk.chunk for chunk in chunks if chunk is not None] == list(range(6))
        assert stream.held_back > 0
        assert stream.in_flight <= 2


def test_skipping_when_late_needs_a_deadline() -> None:
    with pytest.raises(InputError, match='lead_ns is not'):
        StreamOptions(skip_late=True)
