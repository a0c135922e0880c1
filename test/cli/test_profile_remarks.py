"""What `physis profile` says about the GPU that it measured on."""

from __future__ import annotations

import sys

import pytest
from fake_nvml import FakeGpu, FakeNvml

from physis_core.cli.profile import disturbed, remarks
from physis_core.planning.profile import BatchTimes


def test_a_gpu_that_is_not_sound_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'pynvml', FakeNvml(FakeGpu(), FakeGpu(clocks=0x40)))
    assert remarks('cuda:0') == [
        'these times are not those of a sound GPU: GPU 1: clocks are held down (too hot)']
    monkeypatch.setitem(sys.modules, 'pynvml', FakeNvml(FakeGpu()))
    assert remarks('cuda') == []


def test_not_knowing_is_said_and_a_cpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    [remark] = remarks('cuda')
    assert remark.startswith('whether the GPU is sound is not known: ')
    assert 'pip install nvidia-ml-py' in remark
    assert remarks('cpu') == []


def test_a_busy_machine_is_noticed() -> None:
    assert disturbed(BatchTimes((100, 205), (99, 200), (130, 250))) == []
    [sentence] = disturbed(BatchTimes((100, 400), (99, 200), (130, 5000)))
    assert sentence.startswith('batch 2: the mean is 2 times the median')
