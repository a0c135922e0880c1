"""The numbers of a stream as a StreamReport message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from physis_core.delivery.buffer import DeliveryCounts
from physis_core.delivery.ring import ServoFeedback
from physis_core.observability.stream_account import StreamNumbers
from physis_ros.ingest.source import SourceHealth
from physis_ros.msg import StreamReport
from physis_ros.steady_time import SteadyTime


@dataclass(frozen=True, eq=False)
class StreamStatus:
    """How a stream is doing at one moment; what both report and diagnostics are made from.

    Attributes:
        now_ns: the moment.
        epoch: of the stream.
        sources: health of each source.
        numbers: what was measured.
        counts: of the output buffer.
        depth: delivered chunks that are not yet due.
        in_flight: chunks inside the pipeline.
        feedback: of the servo; None: it was never seen.
        underruns: of the servo, in this epoch.
        paused: why no chunks are made; empty: they are.
        fault: why the stream is stopped until a reset; empty: it is not.
    """

    now_ns: int
    epoch: int
    sources: tuple[SourceHealth, ...]
    numbers: StreamNumbers
    counts: DeliveryCounts
    depth: int
    in_flight: int
    feedback: ServoFeedback | None
    underruns: int
    paused: str
    fault: str


def stream_report(status: StreamStatus, stream_id: str, window_s: float, times: SteadyTime
                  ) -> StreamReport:
    """The report of a status."""
    numbers = status.numbers
    message = StreamReport(
        stream_id=stream_id, epoch=status.epoch, window_s=window_s,
        sensor_names=_names(status.sources),
        sensor_hz=[source.hz for source in status.sources],
        replan_hz=numbers.replan_hz, chunk_hz=numbers.chunk_hz, servo_hz=numbers.servo_hz,
        age_p50_s=numbers.age_s.p50, age_p99_s=numbers.age_s.p99, age_max_s=numbers.age_s.max,
        chunks_delivered=status.counts.delivered, deadline_misses=status.counts.missed,
        chunks_dropped=status.counts.dropped, on_time_ratio=numbers.on_time_ratio,
        underruns=status.underruns, buffer_depth=status.depth, chunks_in_flight=status.in_flight)
    for part, summary in numbers.part_s.items():
        setattr(message, f'age_{part}_s', summary.mean)
    message.header.stamp = times.stamp(status.now_ns)
    return message


def _names(sources: Sequence[SourceHealth]) -> list[str]:
    return [source.name for source in sources]
