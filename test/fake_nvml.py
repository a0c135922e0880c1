"""NVML of a machine that is not here: the calls and the numbers of the real module."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    """What the real module raises for everything."""


@dataclass
class FakeGpu:
    name: str = 'NVIDIA H200'
    total: int = 141 * 10 ** 9
    used: int = 5 * 10 ** 9
    nvlinks: int = 18
    nvlink_version: int = 6  # 4.0
    peers: set[int] = field(default_factory=set)  # reached by NVLink
    pcie: tuple[int, int] = (5, 16)
    percent: int = 40
    temperature: int = 55
    milliwatts: int = 400_000
    clocks: int = 0
    ecc: int | None = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    lost: bool = False


class FakeNvml:
    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_NVLINK_MAX_LINKS = 36
    nvmlClocksEventReasonHwSlowdown = 0x8
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80

    def __init__(self, *gpus: FakeGpu, no_driver: bool = False) -> None:
        self.gpus = gpus
        self.no_driver = no_driver
        self.opened = 0

    def nvmlInit(self) -> None:
        if self.no_driver:
            raise NVMLError('NVML Shared Library Not Found')
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _gpu(self, handle: int) -> FakeGpu:
        if self.gpus[handle].lost:
            raise NVMLError('GPU is lost')
        return self.gpus[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self._gpu(handle).name

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f'GPU-{handle}'

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=self._gpu(handle).total, used=self._gpu(handle).used)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._gpu(handle).percent, memory=0)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return self._gpu(handle).temperature

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._gpu(handle).milliwatts

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._gpu(handle).clocks

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        ecc = self._gpu(handle).ecc
        if ecc is None:
            raise NVMLError('Not Supported')
        return ecc

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        return self._gpu(handle).rows

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, capability: int) -> int:
        return 0 if other in self._gpu(one).peers else 5

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= self._gpu(handle).nvlinks:
            raise NVMLError('Not Supported')
        return 1

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        return self._gpu(handle).nvlink_version

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return self._gpu(handle).pcie[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return self._gpu(handle).pcie[1]


def switched(count: int) -> list[FakeGpu]:
    """GPUs of which each reaches every other by NVLink."""
    return [FakeGpu(peers=set(range(count)) - {gpu}) for gpu in range(count)]
