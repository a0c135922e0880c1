"""The GPUs of this host, as NVML knows them: what they are, how they are linked, how they fare.

NVML comes with the driver; its Python package (extra `gpu`) is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from physis_core.errors import InputError

Value = TypeVar('Value')

# GB/s in one direction: of an NVLink by NVML's number of its version (1.0, 2.0, 2.2, 3.0, 3.1, 4.0,
# 5.0), of a PCI Express lane by its generation.
_NVLINK_GB_S = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 25.0, 6: 25.0, 7: 50.0}
_PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True)
class Gpu:
    """What a GPU is.

    Attributes:
        index: of NVML, which counts in the order of the bus.
        name: such as `NVIDIA H200`.
        uuid: of this one.
        memory_bytes: of the whole device.
        nvlink_gb_s: all its active NVLinks together, in one direction [GB/s]; 0: none.
        pcie_gb_s: its slot, in one direction [GB/s]; 0: unknown.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int
    nvlink_gb_s: float = 0.0
    pcie_gb_s: float = 0.0


@dataclass(frozen=True)
class GpuHealth:
    """How a GPU fares at one moment; None: it does not tell.

    Attributes:
        index: of NVML.
        name: such as `NVIDIA H200`; empty: it does not answer.
        memory_used_bytes: by all processes.
        memory_bytes: of the whole device.
        busy_ratio: share of the last sample period in which a kernel ran, 0 to 1.
        temperature_c: of the chip [degrees Celsius].
        power_w: drawn [W].
        slowed: why its clocks are held down by hardware or heat, a few words each; empty: they
            are not.
        trouble: what is broken, a sentence each; empty: nothing is known to be.
    """

    index: int
    name: str = ''
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    busy_ratio: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    slowed: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()


class Gpus:
    """NVML, opened once and read as often as wanted; used by one thread.

    Args:
        nvml: the module to ask; None: the installed one.

    Raises:
        InputError: there is no such package, no driver, or no GPU; the text says which.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = _installed() if nvml is None else nvml
        try:
            self._nvml.nvmlInit()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index)
                             for index in range(self._nvml.nvmlDeviceGetCount())]
        except self._nvml.NVMLError as error:
            raise InputError(f'NVML finds no GPU here ({error}); install the driver, or do without '
                             'a GPU') from error
        if not self._handles:
            self.close()
            raise InputError('NVML finds no GPU here (the driver counts 0); check that this '
                             'process may see them')

    def __enter__(self) -> Gpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._handles)

    def close(self) -> None:
        """Let NVML go."""
        self._nvml.nvmlShutdown()

    def facts(self) -> list[Gpu]:
        """What each GPU is."""
        nvml = self._nvml
        return [Gpu(index, str(nvml.nvmlDeviceGetName(handle)),
                    str(nvml.nvmlDeviceGetUUID(handle)),
                    int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                    self._nvlink_gb_s(handle), self._pcie_gb_s(handle))
                for index, handle in enumerate(self._handles)]

    def domains(self) -> list[int]:
        """By GPU, the group it belongs to: within a group, all pairs are linked by NVLink.

        Where no pair is, all of them share the bus of the host: one group.
        """
        groups: list[list[int]] = []
        for gpu in range(len(self)):
            group = next((group for group in groups
                          if all(self._linked(gpu, member) for member in group)), None)
            if group is None:
                groups.append(group := [])
            group.append(gpu)
        if len(groups) == len(self):
            return [0] * len(self)
        return [next(number for number, group in enumerate(groups) if gpu in group)
                for gpu in range(len(self))]

    def health(self) -> list[GpuHealth]:
        """How each GPU fares now; one that does not answer is in trouble, and no error."""
        return [self._health_of(index, handle) for index, handle in enumerate(self._handles)]

    def _health_of(self, index: int, handle: Any) -> GpuHealth:
        nvml = self._nvml
        try:
            name = str(nvml.nvmlDeviceGetName(handle))
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return GpuHealth(index, trouble=(f'the GPU does not answer ({error}): see the '
                                             "kernel's log, and restart the host",))
        percent = self._told(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        temperature_c = self._told(lambda: float(nvml.nvmlDeviceGetTemperature(
            handle, nvml.NVML_TEMPERATURE_GPU)))
        milliwatts = self._told(lambda: int(nvml.nvmlDeviceGetPowerUsage(handle)))
        return GpuHealth(
            index, name, int(memory.used), int(memory.total),
            None if percent is None else percent / 100, temperature_c,
            None if milliwatts is None else milliwatts / 1000,
            self._slowed(handle), tuple(self._trouble(handle)))

    def _slowed(self, handle: Any) -> tuple[str, ...]:
        nvml = self._nvml
        reasons = self._told(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))) or 0
        known = ((nvml.nvmlClocksEventReasonHwThermalSlowdown, 'too hot'),
                 (nvml.nvmlClocksEventReasonSwThermalSlowdown, 'near its temperature limit'),
                 (nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, 'the power supply brakes'))
        words = tuple(text for bit, text in known if reasons & bit)
        if not words and reasons & nvml.nvmlClocksEventReasonHwSlowdown:
            return ('hardware holds the clocks down',)
        return words

    def _trouble(self, handle: Any) -> list[str]:
        nvml = self._nvml
        trouble = []
        errors = self._told(lambda: int(nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)))
        if errors:
            trouble.append(f'{errors} memory errors could not be corrected since the driver was '
                           'loaded: results may be wrong, restart the host')
        rows = self._told(lambda: tuple(nvml.nvmlDeviceGetRemappedRows(handle)))
        if rows is not None and rows[3]:
            trouble.append('a broken row of memory could not be replaced: exchange the GPU')
        elif rows is not None and rows[2]:
            trouble.append('a broken row of memory will be replaced: reset the GPU')
        return trouble

    def _linked(self, one: int, other: int) -> bool:
        nvml = self._nvml
        status = self._told(lambda: int(nvml.nvmlDeviceGetP2PStatus(
            self._handles[one], self._handles[other], nvml.NVML_P2P_CAPS_INDEX_NVLINK)))
        return status == nvml.NVML_P2P_STATUS_OK

    def _nvlink_gb_s(self, handle: Any) -> float:
        return sum(self._link_gb_s(handle, link)
                   for link in range(self._nvml.NVML_NVLINK_MAX_LINKS))

    def _link_gb_s(self, handle: Any, link: int) -> float:
        nvml = self._nvml
        if not self._told(lambda: int(nvml.nvmlDeviceGetNvLinkState(handle, link))):
            return 0.0
        version = self._told(lambda: int(nvml.nvmlDeviceGetNvLinkVersion(handle, link)))
        return _NVLINK_GB_S.get(version or 0, 0.0)

    def _pcie_gb_s(self, handle: Any) -> float:
        nvml = self._nvml
        generation = self._told(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)))
        lanes = self._told(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)))
        return _PCIE_LANE_GB_S.get(generation or 0, 0.0) * (lanes or 0)

    def _told(self, ask: Callable[[], Value]) -> Value | None:
        """The answer, or None where this GPU or driver has none."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def unfit(gpus: Sequence[GpuHealth]) -> list[str]:
    """What is wrong with any of them, a sentence each; empty: nothing that is known."""
    return [f'GPU {gpu.index}: {text}' for gpu in gpus
            for text in (*gpu.trouble, *(f'clocks are held down ({why})' for why in gpu.slowed))]


def _installed() -> Any:
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise InputError('GPUs cannot be looked at without NVML; `pip install nvidia-ml-py` '
                         '(extra `gpu`)') from error
    return pynvml
