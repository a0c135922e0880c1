"""Streams, devices, stages, batches and links from the records they left."""

from __future__ import annotations

import math

import numpy as np
from records import MS, chunks, tasks

from physis_core.observability.snapshot import EdgeReading, MemorySplit, edge_rates, snapshot
from physis_core.observability.stages import batch_numbers, busy_ratio, stage_numbers

TASKS = tasks(
    (0, 0, 0, 0, 2, 1, 2, 6), (1, 0, 0, 0, 2, 2, 2, 6),  # a batch of two, 4 ms
    (0, 0, 0, 1, 1, 6, 6, 9), (1, 0, 0, 1, 1, 6, 9, 12))  # two alone, 3 ms each


def test_batches_count_once_and_their_gain_is_time_saved() -> None:
    numbers = batch_numbers(TASKS)
    assert numbers.batches == 3
    assert numbers.mean == 4 / 3
    assert numbers.sizes == {1: 2 / 3, 2: 1 / 3}
    assert numbers.gain == 4 * 3 / 10
    assert math.isnan(batch_numbers(TASKS[:2]).gain)
    assert batch_numbers(TASKS[:0]).batches == 0


def test_service_and_queueing_of_each_stage() -> None:
    first, second = stage_numbers(TASKS)
    assert (first.step, first.block, first.tasks) == (0, 0, 2)
    assert (first.service_p50_ms, first.queueing_p50_ms) == (4, 0.5)
    assert (second.block, second.service_p50_ms, second.queueing_p50_ms) == (1, 3, 1.5)


def test_a_device_is_busy_once_for_a_batch_and_only_inside_the_window() -> None:
    assert busy_ratio(TASKS, 2 * MS, 12 * MS) == 1.0
    assert busy_ratio(TASKS, 0, 20 * MS) == 0.5
    assert busy_ratio(TASKS, 4 * MS, 8 * MS) == 1.0
    assert busy_ratio(TASKS[:0], 0, MS) == 0.0


def test_a_snapshot_accounts_for_the_window_alone() -> None:
    seen = snapshot('dit', 0, 100 * MS, np.concatenate([
        chunks(0, list(range(20))), chunks(3, [0, 1, 3], took_ms=9)]), [TASKS, TASKS[:0]],
        memory=[MemorySplit(1, 2, 3, 4)] * 2)
    assert [row.slot for row in seen.streams] == [0, 3]
    steady, late = seen.streams
    assert steady.goodput.outputs == 10  # what was taken after the window is not in it
    assert steady.goodput.on_time_ratio == 1.0
    assert steady.goodput_per_s == 100.0
    assert steady.device_s_per_output == 2 * 0.1 / 10
    assert (late.goodput.on_time, late.goodput.skipped) == (0, 1)
    assert seen.devices[0].batches.batches == 3
    assert seen.devices[1].busy == 0.0
    assert seen.devices[0].memory.kv == 2


def test_what_a_link_carried_between_two_readings() -> None:
    before = [EdgeReading(0, 1, 'chunk', 10, 1000, 0, 5000.0)]
    after = [EdgeReading(0, 1, 'chunk', 30, 3000, 2, 7000.0),
             EdgeReading(1, -1, 'output', 4, 8, 0, 0.0)]
    first, second = edge_rates(before, after, 2.0)
    assert (first.messages_per_s, first.bytes_per_s, first.refusals, first.wait_us) == (
        10, 1000, 2, 7)
    assert (second.messages_per_s, second.bytes_per_s) == (2, 4)
