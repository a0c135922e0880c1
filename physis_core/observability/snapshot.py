"""An engine at one moment: its streams, devices, stages and links over the last seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from physis_core.observability.goodput import PoolGoodput, StreamGoodput, stream_goodput
from physis_core.observability.stages import (
    BatchNumbers,
    StageNumbers,
    batch_numbers,
    busy_ratio,
    stage_numbers,
)
from physis_core.units import NS_PER_MS, NS_PER_S, s_from_ns

Records = NDArray[Any]


@dataclass(frozen=True)
class EdgeReading:
    """Counters of a link since it was made (-1: the engine); ``waited_ns`` is a mean."""

    sender: int
    receiver: int
    kind: str
    messages: int
    payload_bytes: int
    refusals: int
    waited_ns: float


@dataclass(frozen=True)
class StreamRow:
    """One stream: its slot, epoch, priority and newest chunk, and its account."""

    slot: int
    epoch: int
    priority: int
    chunk: int
    goodput: StreamGoodput
    goodput_per_s: float
    device_s_per_output: float


@dataclass(frozen=True)
class MemorySplit:
    """Memory of a device's process [bytes].

    Attributes:
        weights: of the model's blocks, embedding and head.
        kv: set aside for history.
        activations: what running added at its peak.
        workspace: the rest: interpreter, libraries, links.
    """

    weights: int = 0
    kv: int = 0
    activations: int = 0
    workspace: int = 0


@dataclass(frozen=True)
class DeviceRow:
    """One device: share of time in batches, its batches, queueing [ms], memory, its stages."""

    device: int
    busy: float
    batches: BatchNumbers
    queueing_p50_ms: float
    queueing_p99_ms: float
    stages: tuple[StageNumbers, ...]
    memory: MemorySplit


@dataclass(frozen=True)
class EdgeRow:
    """One link: rates over the window, mean wait of a message since it was made."""

    sender: int
    receiver: int
    kind: str
    messages_per_s: float
    bytes_per_s: float
    refusals: int
    wait_us: float


@dataclass(frozen=True)
class Snapshot:
    """Everything about an engine over a window."""

    model: str
    window_s: float
    pool: PoolGoodput
    streams: tuple[StreamRow, ...]
    devices: tuple[DeviceRow, ...]
    edges: tuple[EdgeRow, ...]


def snapshot(model: str, first_ns: int, last_ns: int, chunks: Records,
             tasks: Sequence[Records], edges: Sequence[EdgeRow] = (),
             memory: Sequence[MemorySplit] = ()) -> Snapshot:
    """Account for a window, given the chunk records and each device's task records in it."""
    window_s = s_from_ns(last_ns - first_ns)
    chunks = chunks[(chunks['taken_ns'] >= first_ns) & (chunks['taken_ns'] < last_ns)]
    streams = tuple(_stream_row(chunks[chunks['stream'] == slot], len(tasks), window_s)
                    for slot in np.unique(chunks['stream']))
    splits = memory or (MemorySplit(),) * len(tasks)
    devices = tuple(
        _device_row(device, records[records['end_ns'] >= first_ns], first_ns, last_ns, split)
        for device, (records, split) in enumerate(zip(tasks, splits, strict=True)))
    pool = PoolGoodput(tuple(row.goodput for row in streams), len(tasks), window_s)
    return Snapshot(model, window_s, pool, streams, devices, tuple(edges))


def edge_rates(before: Sequence[EdgeReading], after: Sequence[EdgeReading], seconds: float
               ) -> list[EdgeRow]:
    """What links carried between two readings."""
    known = {(one.sender, one.receiver, one.kind): one for one in before}
    rows = []
    for one in after:
        past = known.get((one.sender, one.receiver, one.kind))
        messages = one.messages - (past.messages if past is not None else 0)
        carried = one.payload_bytes - (past.payload_bytes if past is not None else 0)
        rows.append(EdgeRow(one.sender, one.receiver, one.kind, messages / seconds,
                            carried / seconds, one.refusals, one.waited_ns / 1e3))
    return rows


def _stream_row(chunks: Records, devices: int, window_s: float) -> StreamRow:
    last = chunks[-1]
    own = chunks[chunks['epoch'] == last['epoch']]
    due_ns = np.where(own['timed'] != 0, own['due_ns'], np.iinfo(np.int64).max)
    account = stream_goodput(own['release_ns'], own['finished_ns'], due_ns,
                             int(last['period_ns']))
    return StreamRow(int(last['stream']), int(last['epoch']), int(last['priority']),
                     int(last['chunk']), account, account.on_time / window_s,
                     devices * window_s / account.on_time if account.on_time else float('inf'))


def _device_row(device: int, records: Records, first_ns: int, last_ns: int,
                memory: MemorySplit) -> DeviceRow:
    queueing = (np.percentile(np.maximum(records['start_ns'] - records['arrived_ns'], 0), (50, 99))
                / NS_PER_MS if len(records) else (float('nan'),) * 2)
    covered_ns = max(first_ns, int(records['start_ns'].min())) if len(records) else first_ns
    return DeviceRow(device, busy_ratio(records, covered_ns, last_ns), batch_numbers(records),
                     float(queueing[0]), float(queueing[1]), tuple(stage_numbers(records)), memory)


def window_start_ns(now_ns: int, window_s: float) -> int:
    """Where a window that ends now begins."""
    return now_ns - round(window_s * NS_PER_S)
