"""Descriptions of devices, one YAML file each: what a cost can be computed for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from physis_core.errors import InputError
from physis_core.fields import from_mapping, read_yaml

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class DeviceModel:
    """One kind of device.

    Attributes:
        name: what it is called on the command line.
        effective_tflops: arithmetic that a transformer block reaches [TFLOP/s].
        memory_bandwidth_gb_s: of its memory [GB/s].
        launch_us: part of a stage's time that does not grow with the batch [us].
        memory_gb: of the whole device [GB].
        reserve_gb: kept for the runtime, workspace and activations [GB].
        devices_per_host: how many share the fast domain.
        fast_gb_s: bandwidth between two devices of one domain [GB/s].
        fast_us: latency there [us].
        slow_gb_s: bandwidth between two domains [GB/s].
        slow_us: latency there [us].
    """

    name: str
    effective_tflops: float
    memory_bandwidth_gb_s: float
    launch_us: float
    memory_gb: float
    reserve_gb: float
    devices_per_host: int
    fast_gb_s: float
    fast_us: float
    slow_gb_s: float
    slow_us: float


def device_names() -> list[str]:
    """The names that :func:`load_device` knows, sorted."""
    return sorted(path.stem for path in _FOLDER.glob('*.yaml'))


def load_device(name: str) -> DeviceModel:
    """The description of a device.

    Raises:
        InputError: the name is not known.
    """
    if name not in device_names():
        raise InputError(f'device `{name}` is not described; choose one of '
                         f'{", ".join(device_names())}, or measure with `physis profile`')
    path = _FOLDER / f'{name}.yaml'
    return from_mapping(DeviceModel, {'name': name, **read_yaml(path)}, path.name)


def described_name(name: str) -> str:
    """The description that a driver's name such as ``NVIDIA H200`` means, else that name."""
    words = name.lower().replace('-', ' ').split()
    return next((known for known in device_names() if known in words), name)
