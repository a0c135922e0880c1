"""The Prometheus endpoint: the same numbers, on the loopback interface."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from records import MS, chunks, tasks

from physis_core.errors import InputError
from physis_core.observability.exporter import serve
from physis_core.observability.snapshot import EdgeRow, MemorySplit, snapshot


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def test_a_scrape_has_pool_streams_devices_stages_and_links() -> None:
    seen = snapshot('dit', 0, 100 * MS, chunks(2, list(range(10))),
                    [tasks((2, 0, 0, 1, 1, 0, 1, 3))], [EdgeRow(0, -1, 'output', 5, 6, 7, 8)],
                    [MemorySplit(weights=11)])
    port = free_port()
    end = serve(lambda: seen, port)
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics') as answer:
            lines = answer.read().decode().splitlines()
    finally:
        end()
    for line in ('physis_on_time_ratio 1.0', 'physis_goodput_per_second 100.0',
                 'physis_stream_goodput_per_second{stream="2"} 100.0',
                 'physis_device_weights_bytes{device="0"} 11.0',
                 'physis_device_batch_share{device="0",size="1"} 1.0',
                 'physis_stage_service_p50_seconds{block="1",device="0",step="0"} 0.002',
                 'physis_edge_bytes_per_second{kind="output",receiver="-1",sender="0"} 6.0'):
        assert line in lines
    with pytest.raises(OSError):  # nobody answers any more
        urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics')


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(('127.0.0.1', 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(InputError, match=f'127.0.0.1:{port}.*choose another port'):
            serve(lambda: snapshot('dit', 0, MS, chunks(0, [0]), []), port)
