"""What `wam_node` says on /diagnostics (REP-107), once a second, from a steady timer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticStatus

from physis_core.delivery.ring import ServoState
from physis_core.observability.percentiles import Summary
from physis_ros.chunk_delivery import servo_there
from physis_ros.ingest.source import Condition, SourceHealth
from physis_ros.status import ERROR, OK, WARN, Limit, status_of
from physis_ros.stream_report import StreamStatus

_BY_SERVO = 'with the first command of servo_node'
_BY_TRAJECTORY = ('effect is the planned start of the trajectory (its sending, where that is '
                  'later): what the controller did then is not seen')


@dataclass(frozen=True)
class Thresholds:
    """When numbers become warnings and errors.

    Attributes:
        age_s: age p99 [s].
        on_time: on-time ratio.
        rate: share of an expected rate.
        replan: share of the delivered chunks that came from newer observations.
        dropped: share of the finished chunks that were dropped.
        chunk_hz: expected chunk rate [Hz].
        sensor_hz: expected rates by source [Hz]; a source that is not in it has none.
        lead_s: planned time from letting a chunk in to its effect [s].
    """

    age_s: Limit
    on_time: Limit
    rate: Limit
    replan: Limit
    dropped: Limit
    chunk_hz: float
    sensor_hz: dict[str, float]
    lead_s: float


def statuses(node: str, state: str, fault: str, status: StreamStatus | None,
             limits: Thresholds | None, trajectory_topic: str = '') -> list[DiagnosticStatus]:
    """All statuses of a node; only its state where no stream is running.

    ``trajectory_topic`` is where chunks go as trajectories; empty: only a servo plays them.
    """
    level, message = OK, state
    if fault:
        level, message = ERROR, f'stopped: {fault}; call ~/reset to go on'
    elif status is not None and status.paused:
        level, message = WARN, f'paused: {status.paused}'
    if status is None or limits is None:
        return [status_of(node, 'node', level, message, {'state': state})]
    return [
        status_of(node, 'node', level, message, {'state': state, 'epoch': status.epoch}),
        *(_sensor(node, source, limits) for source in status.sources),
        _replan(node, status, limits), _chunk(node, status, limits),
        _servo(node, status, trajectory_topic),
        _age(node, status, limits, trajectory_topic), _deadlines(node, status, limits),
        _buffer(node, status, limits),
    ]


def _sensor(node: str, source: SourceHealth, limits: Thresholds) -> DiagnosticStatus:
    level, message = OK, source.absence or source.condition.value
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
    return status_of(node, f'sensor {source.name}', level, message, {
        'observations received [Hz]': source.hz,
        'expected [Hz]': math.nan if expected_hz is None else expected_hz,
        'age of the newest capture [ms]':
            math.nan if source.age_ns is None else source.age_ns / 1e6,
        'messages received [1]': source.received, 'messages refused [1]': source.refused,
        **({'text': source.text} if source.text else {})})


def _replan(node: str, status: StreamStatus, limits: Thresholds) -> DiagnosticStatus:
    """Chunks that come without newer observations are an open loop."""
    numbers = status.numbers
    share = numbers.replan_hz / numbers.chunk_hz if numbers.chunk_hz > 0 else math.nan
    level = limits.replan.below(share)
    message = 'closed loop'
    if level != OK:
        message = f'{1.0 - share:.0%} of the chunks are made from old observations'
    elif math.isnan(share):
        message = 'no new observation reaches an output'
    return status_of(node, 'replan', level, message, {
        'newer observations that reached an output [Hz]': numbers.replan_hz,
        'share of the chunks delivered [0..1]': share})


def _chunk(node: str, status: StreamStatus, limits: Thresholds) -> DiagnosticStatus:
    level, message = OK, 'paused'
    if not status.paused and not status.fault and math.isnan(status.numbers.chunk_hz):
        message = 'the first chunks are awaited'
    elif not status.paused and not status.fault:
        level, message = _rate_level(
            status.numbers.chunk_hz, limits.chunk_hz, limits, 'at the planned rate')
    return status_of(node, 'chunk', level, message, {
        'chunks delivered [Hz]': status.numbers.chunk_hz, 'planned [Hz]': limits.chunk_hz,
        'chunks delivered in this epoch [1]': status.counts.delivered})


def _servo(node: str, status: StreamStatus, trajectory_topic: str) -> DiagnosticStatus:
    """A servo may be left out where a controller takes trajectories; one that is lost is missed."""
    feedback = status.feedback
    if feedback is None or not servo_there(feedback, status.now_ns):
        level, message = ERROR, (
            'no servo is playing from the ring: start servo_node with the same `ring`; if it runs, '
            'its own status says why it does not play')
        if feedback is None and trajectory_topic:
            level, message = OK, (
                f'not in use: chunks go to {trajectory_topic}, and no servo has played from the '
                'ring')
        return status_of(node, 'servo', level, message, {'control points played [Hz]': math.nan})
    level, message = OK, feedback.state.name.lower()
    if feedback.state in (ServoState.HOLDING, ServoState.STOPPED):
        level = WARN
    return status_of(node, 'servo', level, message, {
        'control points played [Hz]': status.numbers.servo_hz,
        'asked for [Hz]': feedback.rate_hz, 'ticks missed [1]': feedback.missed,
        'underruns in this epoch [1]': status.underruns,
        'commands changed by limits [1]': feedback.limited,
        'scheduling': 'SCHED_FIFO' if feedback.real_time else 'normal'})


def _age(node: str, status: StreamStatus, limits: Thresholds, trajectory_topic: str
         ) -> DiagnosticStatus:
    age = status.numbers.age_s
    by_trajectory = trajectory_topic and not servo_there(status.feedback, status.now_ns)
    level, message = limits.age_s.above(age.p99), 'within limits'
    if math.isnan(age.p99):
        message = 'no action has taken effect in the window'
    if level != OK:
        part = max(status.numbers.part_s, key=lambda name: status.numbers.part_s[name].p50)
        message = f'age p99 is {age.p99 * 1e3:.0f} ms; most of it is {part}'
    if by_trajectory and not math.isnan(age.p99):
        message += f'; {_BY_TRAJECTORY}'
    values: dict[str, object] = {
        'effect': _BY_TRAJECTORY if by_trajectory else _BY_SERVO, **_summary('age', age)}
    for part, summary in status.numbers.part_s.items():
        values.update(_summary(part, summary))
    return status_of(node, 'action age', level, message, values)


def _deadlines(node: str, status: StreamStatus, limits: Thresholds) -> DiagnosticStatus:
    ratio, late = status.numbers.on_time_ratio, status.numbers.response_lateness_s
    level, message = limits.on_time.below(ratio), 'kept'
    if math.isnan(ratio):
        message = 'no chunk finished in the window'
    elif level != OK:
        message = f'{ratio:.0%} on time'
        lead_ms = limits.lead_s * 1e3
        # The largest lateness: a lead that would have kept every deadline of the window.
        needed_ms = math.ceil(lead_ms + late.max * 1e3)
        if needed_ms > lead_ms:
            message += (f'; a lead of {needed_ms} ms would have been enough '
                        f'(lead_ms is {lead_ms:g})')
    return status_of(node, 'deadlines', level, message, {
        'on time [0..1]': ratio, 'misses in this epoch [1]': status.counts.missed,
        **_summary('finished after the deadline', late)})


def _buffer(node: str, status: StreamStatus, limits: Thresholds) -> DiagnosticStatus:
    counts, ratio = status.counts, status.numbers.dropped_ratio
    return status_of(
        node, 'buffer', limits.dropped.above(ratio),
        f'last drop: {counts.last_drop}' if counts.dropped else 'nothing dropped',
        {'chunks delivered and not yet due [1]': status.depth,
         'chunks in the pipeline [1]': status.in_flight,
         'dropped in the window [0..1]': ratio,
         'dropped in this epoch [1]': counts.dropped,
         'deadlines anchored anew in this epoch [1]': counts.reanchored})


def _rate_level(hz: float, expected_hz: float, limits: Thresholds, fine: str
                ) -> tuple[bytes, str]:
    level = limits.rate.below(hz / expected_hz)
    return level, fine if level == OK else f'{hz:.2f} Hz, expected {expected_hz:.2f} Hz'


def _summary(name: str, summary: Summary) -> dict[str, float]:
    return {f'{name} {what} [ms]': value * 1e3
            for what, value in (('p50', summary.p50), ('p99', summary.p99), ('max', summary.max))}
