"""What NVML says, put into words; a stand-in for its module answers where there is no driver."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from fake_nvml import FakeGpu, FakeNvml, switched

from physis_core.errors import InputError
from physis_core.gpus import GpuHealth, Gpus, unfit


def test_facts_of_each_gpu() -> None:
    nvml = FakeNvml(FakeGpu(), FakeGpu(name='NVIDIA L40S', total=48 * 10 ** 9, nvlinks=0,
                                       pcie=(4, 16)))
    with Gpus(nvml) as gpus:
        h200, l40s = gpus.facts()
    assert (h200.name, h200.uuid, h200.memory_bytes) == ('NVIDIA H200', 'GPU-0', 141 * 10 ** 9)
    assert h200.nvlink_gb_s == 18 * 25.0
    assert h200.pcie_gb_s == pytest.approx(63.0, abs=0.1)
    assert (l40s.nvlink_gb_s, l40s.pcie_gb_s) == (0.0, pytest.approx(31.5, abs=0.1))
    assert nvml.opened == 0


@pytest.mark.parametrize(('peers', 'domains'), [
    ([{1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}], [0, 0, 0, 0]),
    ([{1}, {0}, {3}, {2}], [0, 0, 1, 1]),
    ([{1}, {0, 2}, {1}], [0, 0, 1]),  # a chain: its ends are not linked
    ([set(), set()], [0, 0])])
def test_domains_are_groups_of_which_all_pairs_are_linked(
        peers: list[set[int]], domains: list[int]) -> None:
    with Gpus(FakeNvml(*(FakeGpu(peers=reached) for reached in peers))) as gpus:
        assert gpus.domains() == domains


def test_a_healthy_gpu_tells_numbers_and_no_trouble() -> None:
    with Gpus(FakeNvml(FakeGpu(ecc=None))) as gpus:
        health = gpus.health()
    assert health == [GpuHealth(0, 'NVIDIA H200', 5 * 10 ** 9, 141 * 10 ** 9, 0.4, 55.0, 400.0)]
    assert unfit(health) == []


@pytest.mark.parametrize(('gpu', 'said'), [
    (FakeGpu(clocks=0x40 | 0x8), r'GPU 1: clocks are held down \(too hot\)'),
    (FakeGpu(clocks=0x8), 'GPU 1: clocks are held down .*hardware'),
    (FakeGpu(ecc=3), 'GPU 1: 3 memory errors could not be corrected'),
    (FakeGpu(rows=(0, 1, 1, 0)), 'GPU 1: .* reset the GPU'),
    (FakeGpu(rows=(0, 9, 1, 1)), 'GPU 1: .* exchange the GPU'),
    (FakeGpu(lost=True), r'GPU 1: the GPU does not answer \(GPU is lost\)')])
def test_what_is_wrong_is_a_sentence_and_spares_the_others(
        gpu: FakeGpu, said: str) -> None:
    with Gpus(FakeNvml(FakeGpu(), gpu)) as gpus:
        good, bad = gpus.health()
    assert unfit([good]) == []
    [sentence] = unfit([good, bad])
    assert re.match(said, sentence), sentence


def test_without_package_driver_or_gpu_one_sentence_says_so(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    with pytest.raises(InputError, match='pip install nvidia-ml-py'):
        Gpus()
    with pytest.raises(InputError, match=r'Shared Library Not Found.* install the driver'):
        Gpus(FakeNvml(no_driver=True))
    nvml = FakeNvml()
    with pytest.raises(InputError, match='counts 0'):
        Gpus(nvml)
    assert nvml.opened == 0


@pytest.mark.skipif(importlib.util.find_spec('pynvml') is None, reason='needs pynvml (extra `gpu`)')
def test_the_stand_in_has_the_numbers_of_the_real_module() -> None:
    import pynvml

    for name, value in vars(FakeNvml).items():
        if not name.startswith('_'):
            assert hasattr(pynvml, name), name
        if isinstance(value, int):
            assert getattr(pynvml, name) == value, name


def test_switched_gpus_are_one_domain() -> None:
    with Gpus(FakeNvml(*switched(8))) as gpus:
        assert gpus.domains() == [0] * 8
