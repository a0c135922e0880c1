"""What is said about devices: memory, processor time, temperatures, GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_nvml import FakeGpu, FakeNvml

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from diagnostic_msgs.msg import DiagnosticStatus

from physis_core.gpus import Gpus
from physis_core.runtime.device_memory import DeviceProcess
from physis_ros.device_status import (
    DeviceWatch,
    cpu_seconds,
    host_memory_share,
    host_temperatures_c,
)
from physis_ros.status import Limit

MIB = 2**20
NEVER = Limit(1e9, 1e9)
OWN = (DeviceProcess(os.getpid(), 3 * MIB, MIB),)


def look(watch: DeviceWatch, devices: Sequence[DeviceProcess] = OWN, temperature_c: Limit = NEVER,
         memory: Limit = NEVER) -> tuple[DiagnosticStatus, dict[str, str]]:
    status = watch.status('wam_node', devices, temperature_c, memory)
    return status, {item.key: item.value for item in status.values}


def test_memory_and_processor_time_of_each_device() -> None:
    watch = DeviceWatch(Gpus(FakeNvml(FakeGpu())))
    status, first = look(watch)
    assert status.name == 'wam_node: devices'
    assert (first['device 0 weights [MiB]'], first['device 0 KV [MiB]']) == ('3', '1')
    assert float(first['device 0 process resident [MiB]']) > 10
    assert first['device 0 process CPU [%]'] == 'nan'
    sum(range(3_000_000))
    assert float(look(watch)[1]['device 0 process CPU [%]']) > 0
    watch.close()


def test_a_process_that_has_ended_is_no_error() -> None:
    watch = DeviceWatch(Gpus(FakeNvml(FakeGpu())))
    _, values = look(watch, [DeviceProcess(2**22 + 1, 0, 0)])
    assert values['device 0 process resident [MiB]'] == '0'
    watch.close()


def test_a_gpu_tells_memory_use_temperature_and_power() -> None:
    nvml = FakeNvml(FakeGpu(percent=40, temperature=55, milliwatts=400_000))
    watch = DeviceWatch(Gpus(nvml))
    status, values = look(watch)
    assert status.level == DiagnosticStatus.OK
    assert values['GPU 0 busy [0..1]'] == '0.4'
    assert values['GPU 0 temperature [degrees Celsius]'] == '55'
    assert values['GPU 0 power [W]'] == '400'
    assert float(values['GPU 0 memory used [MiB]']) == pytest.approx(5e9 / MIB, rel=1e-3)
    watch.close()
    assert not nvml.opened


@pytest.mark.parametrize(('gpu', 'limits', 'level', 'text'), [
    (FakeGpu(temperature=90), {'temperature_c': Limit(85, 95)}, DiagnosticStatus.WARN,
     'GPU 0 is at 90 degrees Celsius'),
    (FakeGpu(temperature=99), {'temperature_c': Limit(85, 95)}, DiagnosticStatus.ERROR, '99'),
    (FakeGpu(total=100, used=95), {'memory': Limit(0.9, 0.97)}, DiagnosticStatus.WARN,
     '95% of the memory of GPU 0'),
    (FakeGpu(clocks=0x40), {}, DiagnosticStatus.WARN, 'too hot'),
    (FakeGpu(lost=True), {}, DiagnosticStatus.ERROR, 'does not answer'),
])
def test_what_is_wrong_is_said_with_its_level(
        monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu, limits: dict[str, Limit], level: bytes,
        text: str) -> None:
    monkeypatch.setattr('physis_ros.device_status.host_memory_share', lambda: 0.1)
    monkeypatch.setattr('physis_ros.device_status.host_temperatures_c', dict)
    watch = DeviceWatch(Gpus(FakeNvml(gpu)))
    status, _ = look(watch, **limits)
    assert (status.level, text in status.message) == (level, True), status.message
    watch.close()


def test_without_gpus_one_value_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    watch = DeviceWatch()
    status, values = look(watch)
    assert 'nvidia-ml-py' in values['GPUs']
    assert status.level == DiagnosticStatus.OK
    watch.close()


def test_what_the_host_tells(tmp_path: Path) -> None:
    meminfo = tmp_path / 'meminfo'
    meminfo.write_text('MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n')
    assert host_memory_share(meminfo) == pytest.approx(0.75)
    assert host_memory_share(tmp_path / 'none') != host_memory_share(tmp_path / 'none')  # NaN
    for zone, kind, text in ((0, 'cpu', '51000'), (1, 'cpu', '62500'), (2, 'wifi', 'broken')):
        folder = tmp_path / f'thermal_zone{zone}'
        folder.mkdir()
        (folder / 'type').write_text(f'{kind}\n')
        (folder / 'temp').write_text(f'{text}\n')
    assert host_temperatures_c(tmp_path) == {'cpu': 62.5}
    assert cpu_seconds(os.getpid()) > 0
