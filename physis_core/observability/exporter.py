"""The numbers of an engine for Prometheus, on the loopback interface unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from physis_core.errors import InputError
from physis_core.observability.snapshot import Snapshot

LOOPBACK = '127.0.0.1'


@dataclass(frozen=True)
class _Gauge:
    """A family of numbers: its name, what it says, and the names of its labels."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


_POOL = {
    'on_time_ratio': _Gauge('physis_on_time_ratio', 'share of planned outputs that met deadline'),
    'goodput_per_s': _Gauge('physis_goodput_per_second', 'outputs in time'),
    'device_s_per_output': _Gauge('physis_device_seconds_per_output', 'cost of an output in time'),
}
_STREAM = ('stream',)
_DEVICE = ('device',)
_STAGE = ('device', 'step', 'block')
_EDGE = ('sender', 'receiver', 'kind')


class SnapshotCollector(Collector):
    """Takes a snapshot whenever Prometheus asks."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        """All numbers of one snapshot."""
        seen = self._take()
        for attribute, gauge in _POOL.items():
            yield _family(gauge, {(): getattr(seen.pool, attribute)})
        yield from self._streams(seen)
        yield from self._devices(seen)
        yield from self._edges(seen)

    def _streams(self, seen: Snapshot) -> Iterator[Metric]:
        for name, text, value in (
                ('on_time_ratio', 'share of planned outputs that met their deadline',
                 lambda row: row.goodput.on_time_ratio),
                ('goodput_per_second', 'outputs in time', lambda row: row.goodput_per_s),
                ('device_seconds_per_output', 'cost of an output in time',
                 lambda row: row.device_s_per_output),
                ('period_p50_seconds', 'interval between outputs, median',
                 lambda row: row.goodput.period_p50_ms / 1e3),
                ('response_p50_seconds', 'from planned entrance to output, median',
                 lambda row: row.goodput.response_p50_ms / 1e3),
                ('period_p99_seconds', 'interval between outputs',
                 lambda row: row.goodput.period_p99_ms / 1e3),
                ('response_p99_seconds', 'from planned entrance to output',
                 lambda row: row.goodput.response_p99_ms / 1e3)):
            yield _family(_Gauge(f'physis_stream_{name}', text, _STREAM),
                          {(str(row.slot),): value(row) for row in seen.streams})

    def _devices(self, seen: Snapshot) -> Iterator[Metric]:
        for name, text, value in (
                ('busy_ratio', 'share of time in batches', lambda row: row.busy),
                ('batch_mean', 'tasks in a batch', lambda row: row.batches.mean),
                ('batch_streams_mean', 'streams in a batch', lambda row: row.batches.streams_mean),
                ('batch_gain', 'time of the tasks alone over time taken',
                 lambda row: row.batches.gain),
                ('queueing_p50_seconds', 'wait of a task, median',
                 lambda row: row.queueing_p50_ms / 1e3),
                ('queueing_p99_seconds', 'wait of a task', lambda row: row.queueing_p99_ms / 1e3)):
            yield _family(_Gauge(f'physis_device_{name}', text, _DEVICE),
                          {(str(row.device),): value(row) for row in seen.devices})
        yield _family(_Gauge('physis_device_batch_share', 'share of batches of a size',
                             ('device', 'size')),
                      {(str(row.device), str(size)): share for row in seen.devices
                       for size, share in row.batches.sizes.items()})
        for part in ('weights', 'kv', 'activations', 'workspace'):
            yield _family(_Gauge(f'physis_device_{part}_bytes', f'memory: {part}', _DEVICE),
                          {(str(row.device),): getattr(row.memory, part) for row in seen.devices})
        for name in ('service_p50', 'service_p99', 'queueing_p50', 'queueing_p99'):
            yield _family(
                _Gauge(f'physis_stage_{name}_seconds', f'{name} of a stage', _STAGE),
                {(str(row.device), str(stage.step), str(stage.block)):
                 getattr(stage, f'{name}_ms') / 1e3
                 for row in seen.devices for stage in row.stages})

    def _edges(self, seen: Snapshot) -> Iterator[Metric]:
        for name, text, value in (
                ('bytes_per_second', 'tensors carried', lambda row: row.bytes_per_s),
                ('messages_per_second', 'messages carried', lambda row: row.messages_per_s),
                ('refusals', 'sends that found no place', lambda row: row.refusals),
                ('wait_seconds', 'mean wait of a message', lambda row: row.wait_us / 1e6)):
            yield _family(
                _Gauge(f'physis_edge_{name}', text, _EDGE),
                {(str(row.sender), str(row.receiver), row.kind): value(row) for row in seen.edges})


def serve(take: Callable[[], Snapshot], port: int, address: str = LOOPBACK
          ) -> Callable[[], None]:
    """Answer Prometheus at ``http://address:port/metrics``; returns what ends it.

    Raises:
        InputError: the port cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(take))
    try:
        server, thread = start_http_server(port, address, registry)
    except (OSError, OverflowError) as error:
        raise InputError(f'no Prometheus endpoint at {address}:{port} ({error}); '
                         'choose another port') from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()
    return end


def _family(gauge: _Gauge, values: Mapping[tuple[str, ...], Any]) -> Metric:
    family = GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels)
    for labels, value in values.items():
        family.add_metric(labels, float(value))
    return family
