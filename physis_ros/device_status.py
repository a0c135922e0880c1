"""How the devices and their host fare, for /diagnostics."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticStatus

from physis_core.errors import InputError
from physis_core.gpus import GpuHealth, Gpus, unfit
from physis_core.runtime.device_memory import DeviceProcess, resident_bytes
from physis_core.units import NS_PER_S
from physis_ros.status import ERROR, OK, WARN, Limit, status_of

_MIB = 2**20
_THERMAL = Path('/sys/class/thermal')
_MEMORY = Path('/proc/meminfo')


class DeviceWatch:
    """Reads what the system tells about devices, once a second; used by one thread."""

    def __init__(self, gpus: Gpus | None = None) -> None:
        """Open NVML, or the given one, which belongs to this object from now on."""
        self._cpu: dict[int, tuple[float, int]] = {}
        self._gpus: Gpus | None = gpus
        self._no_gpus = ''
        if gpus is None:
            try:
                self._gpus = Gpus()
            except InputError as error:
                self._no_gpus = str(error)

    def close(self) -> None:
        """Let NVML go."""
        if self._gpus is not None:
            self._gpus.close()

    def status(self, node: str, devices: Sequence[DeviceProcess], temperature_c: Limit,
               memory: Limit) -> DiagnosticStatus:
        """Memory of each device, processor time of its process, temperatures, GPUs."""
        gpus = [] if self._gpus is None else self._gpus.health()
        values: dict[str, object] = {}
        for index, device in enumerate(devices):
            values.update({
                f'device {index} weights [MiB]': device.weights_bytes / _MIB,
                f'device {index} KV [MiB]': device.kv_bytes / _MIB,
                f'device {index} process resident [MiB]': resident_bytes(device.pid) / _MIB,
                f'device {index} process CPU [%]': self._cpu_percent(device.pid)})
        self._cpu = {pid: self._cpu[pid] for pid in {device.pid for device in devices}
                     if pid in self._cpu}
        memory_shares = {'host': host_memory_share()}
        temperatures = host_temperatures_c()
        for gpu in gpus:
            values.update(_gpu_values(gpu))
            if gpu.memory_used_bytes is not None and gpu.memory_bytes:
                memory_shares[f'GPU {gpu.index}'] = gpu.memory_used_bytes / gpu.memory_bytes
            if gpu.temperature_c is not None:
                temperatures[f'GPU {gpu.index}'] = gpu.temperature_c
        values['host memory in use [0..1]'] = memory_shares['host']
        values.update({f'{name} temperature [degrees Celsius]': value
                       for name, value in temperatures.items()})
        if not temperatures:
            values['temperature'] = 'not told by this machine'
        if self._no_gpus:
            values['GPUs'] = self._no_gpus
        level, said = _judged(gpus, temperatures, temperature_c, memory_shares, memory)
        return status_of(node, 'devices', level, '; '.join(said) or 'within limits', values)

    def _cpu_percent(self, pid: int) -> float:
        """Of one processor, since the last look; NaN at the first."""
        now_ns, used_s = time.monotonic_ns(), cpu_seconds(pid)
        before_s, before_ns = self._cpu.get(pid, (float('nan'), 0))
        self._cpu[pid] = (used_s, now_ns)
        return 100.0 * (used_s - before_s) / ((now_ns - before_ns) / NS_PER_S)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, user and system [s]; NaN: it has ended."""
    try:
        # The name of the process, in brackets, may have spaces.
        fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    except OSError:
        return float('nan')
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def host_memory_share(path: Path = _MEMORY) -> float:
    """Share of the host's memory that is in use; NaN: it does not tell."""
    kib: dict[str, float] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(':')
            kib[name] = float(rest.split()[0])
    total = kib.get('MemTotal', 0.0)
    return 1.0 - kib['MemAvailable'] / total if total and 'MemAvailable' in kib else float('nan')


def host_temperatures_c(folder: Path = _THERMAL) -> dict[str, float]:
    """The host's temperatures by what was measured; empty: it does not tell."""
    found: dict[str, float] = {}
    for zone in sorted(folder.glob('thermal_zone*')):
        with suppress(OSError, ValueError):  # some zones are there and cannot be read
            name = (zone / 'type').read_text().strip()
            value = int((zone / 'temp').read_text()) / 1000
            found[name] = max(value, found.get(name, value))
    return found


def _gpu_values(gpu: GpuHealth) -> dict[str, object]:
    name = f'GPU {gpu.index}'
    told: dict[str, object | None] = {
        f'{name} name': gpu.name or None,
        f'{name} memory used [MiB]': _mib(gpu.memory_used_bytes),
        f'{name} memory [MiB]': _mib(gpu.memory_bytes),
        f'{name} busy [0..1]': gpu.busy_ratio, f'{name} power [W]': gpu.power_w}
    return {key: value for key, value in told.items() if value is not None}


def _mib(count: int | None) -> float | None:
    return None if count is None else count / _MIB


def _judged(gpus: Sequence[GpuHealth], temperatures: dict[str, float], temperature_c: Limit,
            shares: dict[str, float], memory: Limit) -> tuple[bytes, list[str]]:
    said, levels = list(unfit(gpus)), [OK]
    levels += [ERROR if gpu.trouble else WARN if gpu.slowed else OK for gpu in gpus]
    for name, value in temperatures.items():
        levels.append(temperature_c.above(value))
        if levels[-1] != OK:
            said.append(f'{name} is at {value:.0f} degrees Celsius')
    for name, share in shares.items():
        levels.append(memory.above(share))
        if levels[-1] != OK:
            said.append(f'{share:.0%} of the memory of {name} is in use')
    return max(levels), said
