"""`physis bench hop`: that it ends and reports every transport, not how fast they are."""

from __future__ import annotations

import json
import os

import pytest

from physis_core.cli.benches import hop
from physis_core.cli.main import main
from physis_core.errors import PhysisError


def test_every_transport_is_reported_for_both_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['bench', 'hop', '--rounds', '10', '--json']) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for size in hop.SIZES_BYTES:
        for transport in hop.TRANSPORTS:
            assert 0 < result[f'{transport}_{size}_p50_us'] <= result[f'{transport}_{size}_p99_us']
        assert result[f'gloo_over_shm_{size}'] > 0


def _ends_at_once(*_: object) -> None:
    os._exit(1)


def test_an_end_that_dies_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop, '_end', _ends_at_once)
    monkeypatch.setattr(hop, '_LAST_WORDS_S', 0.1)
    with pytest.raises(PhysisError, match='ended before it had a result'):
        hop._measure(10)
