"""What `wam_node` says on /diagnostics (REP-107), once a second, from a steady timer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from physis_core.delivery.ring import ServoState
from physis_core.observability.percentiles import Summary
from physis_ros.ingest.source import Condition, SourceHealth
from physis_ros.stream_report import StreamStatus

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
# A servo that has not ticked for so long is not there.
_SERVO_GONE_NS = 1_000_000_000


@dataclass(frozen=True)
class Thresholds:
    """When numbers become warnings and errors.

    Attributes:
        warn_age_s: age p99 [s].
        error_age_s: age p99 [s].
        warn_on_time: on-time ratio.
        error_on_time: on-time ratio.
        warn_rate: share of an expected rate.
        error_rate: share of an expected rate.
        chunk_hz: expected chunk rate [Hz].
        sensor_hz: expected rates by source [Hz]; a source that is not in it has none.
        lead_s: planned time from letting a chunk in to its effect [s].
    """

    warn_age_s: float
    error_age_s: float
    warn_on_time: float
    error_on_time: float
    warn_rate: float
    error_rate: float
    chunk_hz: float
    sensor_hz: dict[str, float]
    lead_s: float


def statuses(node: str, state: str, status: StreamStatus | None, limits: Thresholds | None
             ) -> list[DiagnosticStatus]:
    """All statuses of a node; only its state where no stream is running."""
    if status is None or limits is None:
        return [_status(node, 'node', OK, state, {})]
    level, message = OK, state
    if status.fault:
        level, message = ERROR, f'stopped: {status.fault}; call ~/reset to go on'
    elif status.paused:
        level, message = WARN, f'paused: {status.paused}'
    return [
        _status(node, 'node', level, message, {'state': state, 'epoch': status.epoch}),
        *(_sensor(node, source, limits) for source in status.sources),
        _replan(node, status), _chunk(node, status, limits), _servo(node, status),
        _age(node, status, limits), _deadlines(node, status, limits), _buffer(node, status),
    ]


def _sensor(node: str, source: SourceHealth, limits: Thresholds) -> DiagnosticStatus:
    level, message = OK, source.condition.value
    expected_hz = limits.sensor_hz.get(source.name)
    if source.condition in (Condition.MISSING, Condition.STALE):
        level = ERROR
    elif source.condition is Condition.FROZEN:
        level = WARN
    elif expected_hz is not None:
        level, message = _rate_level(source.hz, expected_hz, limits, message)
    if source.last_refusal:
        level = max(level, WARN)
        message += f'; messages are refused: {source.last_refusal}'
    return _status(node, f'sensor {source.name}', level, message, {
        'observations received [Hz]': source.hz,
        'expected [Hz]': math.nan if expected_hz is None else expected_hz,
        'age of the newest capture [ms]':
            math.nan if source.age_ns is None else source.age_ns / 1e6,
        'messages received [1]': source.received, 'messages refused [1]': source.refused})


def _replan(node: str, status: StreamStatus) -> DiagnosticStatus:
    """Chunks that come without newer observations are an open loop."""
    open_loop = status.numbers.replan_hz == 0 and status.numbers.chunk_hz > 0
    return _status(
        node, 'replan', WARN if open_loop else OK,
        'chunks are made from old observations' if open_loop else 'closed loop'
        if status.numbers.replan_hz > 0 else 'no new observation reaches an output',
        {'newer observations that reached an output [Hz]': status.numbers.replan_hz})


def _chunk(node: str, status: StreamStatus, limits: Thresholds) -> DiagnosticStatus:
    level, message = OK, 'paused'
    if not status.paused and not status.fault:
        level, message = _rate_level(
            status.numbers.chunk_hz, limits.chunk_hz, limits, 'at the planned rate')
    return _status(node, 'chunk', level, message, {
        'chunks delivered [Hz]': status.numbers.chunk_hz, 'planned [Hz]': limits.chunk_hz,
        'chunks delivered in this epoch [1]': status.counts.delivered})


def _servo(node: str, status: StreamStatus) -> DiagnosticStatus:
    feedback = status.feedback
    if feedback is None or status.now_ns - feedback.tick_ns > _SERVO_GONE_NS:
        return _status(node, 'servo', ERROR, 'no servo is playing from the ring: start '
                       'servo_node with the same `ring`', {'control points played [Hz]': math.nan})
    level, message = OK, feedback.state.name.lower()
    if feedback.state in (ServoState.HOLDING, ServoState.STOPPED):
        level = WARN
    return _status(node, 'servo', level, message, {
        'control points played [Hz]': status.numbers.servo_hz,
        'asked for [Hz]': feedback.rate_hz, 'ticks missed [1]': feedback.missed,
        'underruns in this epoch [1]': status.underruns,
        'commands changed by limits [1]': feedback.limited,
        'scheduling': 'SCHED_FIFO' if feedback.real_time else 'normal'})


def _age(node: str, status: StreamStatus, limits: Thresholds) -> DiagnosticStatus:
    age = status.numbers.age_s
    level, message = OK, 'within limits'
    if math.isnan(age.p99):
        message = 'no action has taken effect in the window'
    elif age.p99 > limits.error_age_s:
        level = ERROR
    elif age.p99 > limits.warn_age_s:
        level = WARN
    if level != OK:
        part = max(status.numbers.part_s, key=lambda name: status.numbers.part_s[name].p50)
        message = f'age p99 is {age.p99 * 1e3:.0f} ms; most of it is {part}'
    values = _summary('age', age)
    for part, summary in status.numbers.part_s.items():
        values.update(_summary(part, summary))
    return _status(node, 'action age', level, message, values)


def _deadlines(node: str, status: StreamStatus, limits: Thresholds) -> DiagnosticStatus:
    ratio, late = status.numbers.on_time_ratio, status.numbers.response_lateness_s
    level, message = OK, 'kept'
    if math.isnan(ratio):
        message = 'no chunk finished in the window'
    elif ratio < limits.warn_on_time:
        level = ERROR if ratio < limits.error_on_time else WARN
        needed_ms = (limits.lead_s + max(late.p99, 0.0)) * 1e3
        message = (f'{ratio:.0%} on time; a lead of {needed_ms:.0f} ms would have been enough '
                   f'(lead_ms is {limits.lead_s * 1e3:.0f})')
    return _status(node, 'deadlines', level, message, {
        'on time [0..1]': ratio, 'misses in this epoch [1]': status.counts.missed,
        **_summary('finished after the deadline', late)})


def _buffer(node: str, status: StreamStatus) -> DiagnosticStatus:
    counts = status.counts
    return _status(
        node, 'buffer', OK,
        f'last drop: {counts.last_drop}' if counts.dropped else 'nothing dropped',
        {'chunks delivered and not yet due [1]': status.depth,
         'chunks in the pipeline [1]': status.in_flight,
         'dropped in this epoch [1]': counts.dropped,
         'deadlines anchored anew in this epoch [1]': counts.reanchored})


def _rate_level(hz: float, expected_hz: float, limits: Thresholds, fine: str
                ) -> tuple[bytes, str]:
    if math.isnan(hz) or hz >= limits.warn_rate * expected_hz:
        return OK, fine
    level = ERROR if hz < limits.error_rate * expected_hz else WARN
    return level, f'{hz:.2f} Hz, expected {expected_hz:.2f} Hz'


def _summary(name: str, summary: Summary) -> dict[str, float]:
    return {f'{name} {what} [ms]': value * 1e3
            for what, value in (('p50', summary.p50), ('p99', summary.p99), ('max', summary.max))}


def _status(node: str, what: str, level: bytes, message: str,
            values: Mapping[str, object]) -> DiagnosticStatus:
    return DiagnosticStatus(
        name=f'{node}: {what}', hardware_id=node, level=level, message=message,
        values=[KeyValue(key=key, value=f'{value:.4g}' if isinstance(value, float) else str(value))
                for key, value in values.items()])
