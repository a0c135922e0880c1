"""Clusters in words and in files."""

import sys

import pytest
from fake_nvml import FakeGpu, FakeNvml, switched

from physis_core.errors import InputError
from physis_core.planning.cluster import GB, Link, bare_cluster, read_cluster, uniform_cluster
from physis_core.planning.devices import load_device


def test_short_form():
    cluster = read_cluster('24xH100-80G')
    assert len(cluster.devices) == 24
    assert {device.memory_bytes for device in cluster.devices} == {78 * GB}
    assert [device.domain for device in cluster.devices] == [0] * 8 + [1] * 8 + [2] * 8


def test_hops_know_the_domain():
    cluster = read_cluster('16xH100')
    size = 14_376_960
    assert cluster.hop_us(3, 3, size) == 0
    assert cluster.hop_us(0, 7, size) == round(5 + size / 450e3)
    assert cluster.hop_us(7, 8, size) == round(15 + size / 50e3)


def test_file(tmp_path):
    path = tmp_path / 'cluster.yaml'
    path.write_text('hosts:\n- {model: h100, devices: 2}\n- {model: h200, devices: 1, '
                    'memory_gb: 100}\nslow: {gb_s: 10, latency_us: 30}\n')
    cluster = read_cluster(str(path))
    assert [device.memory_bytes // GB for device in cluster.devices] == [78, 78, 98]
    assert cluster.slow == Link(10, 30)


@pytest.mark.parametrize('text, says', [
    ('hosst:\n- {model: h100, devices: 2}\n', 'unknown key `hosst`; did you mean `hosts`'),
    ('hosts:\n- {model: h100, devises: 2}\n', 'host 0 has the unknown key `devises`'),
    ('hosts:\n- {model: h100}\n', 'host 0 lacks `devices`'),
    ('hosts:\n- {model: h100, devices: two}\n', 'must be a whole number'),
    ('hosts:\n- {model: h101, devices: 2}\n', '`h101` is not described'),
    ('hosts:\n- {model: h100, devices: 2, memory_gb: much}\n', 'must be a number'),
    ('hosts:\n- {model: h100, devices: 2, memory_gb: 1}\n', 'more than its reserve'),
    ('hosts:\n- {model: h100, devices: 0}\n', '0 devices; give from 1 to 10000'),
    ('hosts:\n- {model: h100, devices: 6000}\n- {model: h100, devices: 6000}\n',
     '12000 devices; give from 1 to 10000'),
    ('hosts: []\n', 'at least one host'),
    ('hosts: [', 'is not YAML'),
    ('- h100\n', 'holds list'),
])
def test_typos_are_named(tmp_path, text, says):
    path = tmp_path / 'cluster.yaml'
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_cluster(str(path))


@pytest.mark.parametrize('value', ['.nan', '.inf', '-.inf', '-1', '1.0e+300', '9' * 400])
@pytest.mark.parametrize('line, says', [
    ('hosts: [{model: h100, devices: 2, memory_gb: VALUE}]',
     'host 0: `memory_gb` is .* GB; give from 0 to 1000000'),
    ('reserve_gb: VALUE', '`reserve_gb` is .* GB; give from 0 to 1000000'),
    ('fast: {gb_s: VALUE, latency_us: 1}', 'give `gb_s` from 0.001 to 1e.06'),
    ('slow: {gb_s: 1, latency_us: VALUE}', '`latency_us` from 0 to 1e.09'),
])
def test_a_size_that_no_device_has_is_refused(tmp_path, line, value, says):
    path = tmp_path / 'cluster.yaml'
    path.write_text(line.replace('VALUE', value) + '\n' + (
        '' if 'hosts' in line else 'hosts: [{model: h100, devices: 2}]\n'))
    with pytest.raises(InputError, match=says):
        read_cluster(str(path))


@pytest.mark.parametrize('text', ['many', '0xH100', '4xH100-1G', '4xH100-1.2.3G',
                                  f'4xH100-{"9" * 400}G', 'nowhere.yaml'])
def test_bad_clusters(text):
    with pytest.raises(InputError):
        read_cluster(text)


@pytest.mark.parametrize('memory_gb', [float('nan'), float('inf'), 1e300])
def test_a_memory_that_no_device_has_is_refused(memory_gb):
    with pytest.raises(InputError, match='give from 0 to 1000000'):
        uniform_cluster(2, load_device('h100'), memory_gb)
    with pytest.raises(InputError, match='give from 0 to 1000000'):
        bare_cluster(2, memory_gb)


def test_first_devices():
    assert len(read_cluster('4xH100').first(2).devices) == 2
    with pytest.raises(InputError, match='5 devices of 4'):
        read_cluster('4xH100').first(5)


def test_local_gpus_by_nvml(monkeypatch):
    def local(*gpus, **options):
        monkeypatch.setitem(sys.modules, 'pynvml', FakeNvml(*gpus, **options))
        return read_cluster('local')

    cluster = local(*switched(2))
    assert [(device.model, device.memory_bytes // GB, device.domain) for device in cluster.devices
            ] == [('h200', 139, 0)] * 2
    assert cluster.hop_us(0, 1, 450 * 1000) == 1 + 5  # 18 NVLinks of 25 GB/s

    pairs = local(*(FakeGpu(peers={gpu ^ 1}) for gpu in range(4)))
    assert [device.domain for device in pairs.devices] == [0, 0, 1, 1]
    assert pairs.hop_us(1, 2, 63_000) == 1 + 15  # the bus: 16 lanes of 3.938 GB/s

    bridgeless = local(*(FakeGpu(name='Big GPU 9', nvlinks=0) for _ in range(2)))
    assert bridgeless.devices[0].model == 'Big GPU 9'
    assert bridgeless.hop_us(0, 1, 63_000) == 1 + 15

    with pytest.raises(InputError, match=r'NVML finds no GPU here .*describe the cluster'):
        local(no_driver=True)
