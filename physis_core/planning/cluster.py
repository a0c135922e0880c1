"""The devices there are: their memory and how they are linked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from physis_core.errors import InputError
from physis_core.fields import check_keys, from_mapping, read_yaml
from physis_core.gpus import Gpus
from physis_core.planning.devices import DeviceModel, described_name, load_device
from physis_core.planning.plan import MOST_DEVICES

GB = 10 ** 9
MOST_GB = 10 ** 6
"""The most memory of a device, and what one of which only stage times are known is given."""
_SLOWEST_GB_S, _FASTEST_GB_S, _LONGEST_HOP_US = 1e-3, 1e6, 1e9
_NVLINK_US, _BUS_US = 5.0, 15.0  # latencies of a hop: NVML tells bandwidths only
_SHORT = re.compile(r'(\d+)x([A-Za-z0-9]+?)(?:-(\d+(?:\.\d+)?)G)?')


@dataclass(frozen=True)
class Link:
    """A way from device to device: bandwidth [GB/s] and latency [us]."""

    gb_s: float
    latency_us: float

    def __post_init__(self) -> None:
        if not (_SLOWEST_GB_S <= self.gb_s <= _FASTEST_GB_S
                and 0 <= self.latency_us <= _LONGEST_HOP_US):
            raise InputError(f'link of {self.gb_s} GB/s and {self.latency_us} us; give `gb_s` from '
                             f'{_SLOWEST_GB_S:g} to {_FASTEST_GB_S:g} and `latency_us` from 0 to '
                             f'{_LONGEST_HOP_US:g}')

    def transfer_us(self, size_bytes: int) -> int:
        """Time until the last byte is there, whole microseconds."""
        return round(self.latency_us + size_bytes / (self.gb_s * 1e3))


@dataclass(frozen=True)
class Device:
    """One device: what it is, what weights and KV may use of it [bytes], and its fast domain."""

    model: str
    memory_bytes: int
    domain: int = 0


@dataclass(frozen=True)
class Cluster:
    """Devices, those of a domain next to each other.

    Attributes:
        devices: their order is the order in which plans use them.
        fast: between two devices of one domain (NVLink, same host).
        slow: between domains.
        reserve_bytes: set aside on each device for activations and workspace, besides
            ``memory_bytes``; what a plan needs beyond it is taken from ``memory_bytes``.
    """

    devices: tuple[Device, ...]
    fast: Link | None = None
    slow: Link | None = None
    reserve_bytes: int = 2 * GB

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError('the cluster has 0 devices; give at least 1')
        for index, device in enumerate(self.devices):
            if device.memory_bytes <= 0:
                raise InputError(f'device {index} has {device.memory_bytes / GB:g} GB for weights '
                                 'and KV; give it more than its reserve')

    def first(self, count: int) -> Cluster:
        """The cluster with only its first ``count`` devices."""
        if not 1 <= count <= len(self.devices):
            raise InputError(f'{count} devices of {len(self.devices)} asked for; '
                             f'choose 1 to {len(self.devices)}')
        return Cluster(self.devices[:count], self.fast, self.slow, self.reserve_bytes)

    def hop_us(self, sender: int, receiver: int, size_bytes: int) -> int:
        """Time of a hidden state from one device to another [us]; 0 within a device."""
        if sender == receiver:
            return 0
        same = self.devices[sender].domain == self.devices[receiver].domain
        link = self.fast if same else self.slow
        return link.transfer_us(size_bytes) if link is not None else 0


def check_count(count: int) -> None:
    """Refuse a number of devices that no plan can be made for.

    Raises:
        InputError: with the limits.
    """
    if not 1 <= count <= MOST_DEVICES:
        raise InputError(f'{count} devices; give from 1 to {MOST_DEVICES}')


def uniform_cluster(count: int, model: DeviceModel, memory_gb: float | None = None) -> Cluster:
    """``count`` equal devices; ``memory_gb``: what weights and KV may use, reserve excluded."""
    check_count(count)
    usable_gb = model.memory_gb - model.reserve_gb if memory_gb is None else memory_gb
    usable_bytes = _bytes(usable_gb, 'memory of a device, without its reserve,')
    return Cluster(
        tuple(Device(model.name, usable_bytes, index // model.devices_per_host)
              for index in range(count)),
        Link(model.fast_gb_s, model.fast_us), Link(model.slow_gb_s, model.slow_us),
        round(model.reserve_gb * GB))


def bare_cluster(count: int, memory_gb: float) -> Cluster:
    """``count`` devices of which only the memory is known; hops take no time."""
    check_count(count)
    return Cluster((Device('given', _bytes(memory_gb, 'memory of a device')),) * count)


def _bytes(size_gb: float, what: str) -> int:
    """Gigabytes to whole bytes.

    Raises:
        InputError: it is no such size; infinite and not a number are none either.
    """
    if not 0 <= size_gb <= MOST_GB:
        raise InputError(f'{what} is {size_gb} GB; give from 0 to {MOST_GB}')
    return round(size_gb * GB)


def read_cluster(text: str) -> Cluster:
    """A cluster from ``local`` (NVML), ``24xH100-80G``, or the path of a YAML file.

    Raises:
        InputError: it is none of these, or the file has a typo.
    """
    if text == 'local':
        return _local()
    short = _SHORT.fullmatch(text)
    if short is not None:
        count, name, memory = short.groups()
        model = load_device(name.lower())
        usable = None if memory is None else float(memory) - model.reserve_gb
        return uniform_cluster(int(count), model, usable)
    path = Path(text)
    if path.suffix in ('.yaml', '.yml'):
        return _from_mapping(read_yaml(path), str(path))
    raise InputError(f'cluster `{text}` is neither `local`, nor like `24xH100-80G`, nor a .yaml '
                     'file; give one of these')


@dataclass(frozen=True)
class _Host:
    model: str
    devices: int
    memory_gb: float | None = None


@dataclass(frozen=True)
class _File:
    hosts: list[Any] = field(default_factory=list)
    fast: Mapping[str, Any] | None = None
    slow: Mapping[str, Any] | None = None
    reserve_gb: float | None = None


def _from_mapping(data: Mapping[str, Any], where: str) -> Cluster:
    content = from_mapping(_File, data, where)
    if not isinstance(content.hosts, list) or not content.hosts:
        raise InputError(f'{where}: `hosts` must list at least one host with `model` and `devices`')
    hosts = [from_mapping(_Host, host, f'{where}: host {index}')
             for index, host in enumerate(content.hosts)]
    for host in hosts:
        check_count(host.devices)
    check_count(sum(host.devices for host in hosts))
    models = [load_device(host.model.lower()) for host in hosts]
    reserve_bytes = _bytes(models[0].reserve_gb if content.reserve_gb is None
                           else content.reserve_gb, f'{where}: `reserve_gb`')
    devices: list[Device] = []
    for domain, (host, model) in enumerate(zip(hosts, models, strict=True)):
        whole_bytes = _bytes(model.memory_gb if host.memory_gb is None else host.memory_gb,
                             f'{where}: host {domain}: `memory_gb`')
        devices += [Device(model.name, whole_bytes - reserve_bytes, domain)] * host.devices
    return Cluster(
        tuple(devices),
        _link(content.fast, Link(models[0].fast_gb_s, models[0].fast_us), f'{where}: `fast`'),
        _link(content.slow, Link(models[0].slow_gb_s, models[0].slow_us), f'{where}: `slow`'),
        reserve_bytes)


def _link(data: Mapping[str, Any] | None, default: Link, where: str) -> Link:
    if data is None:
        return default
    check_keys(data, dict.fromkeys(('gb_s', 'latency_us')), where)
    return from_mapping(Link, data, where)


def _local() -> Cluster:
    """The GPUs of this host: one fast domain per group linked by NVLink, the bus between them."""
    try:
        with Gpus() as local:
            gpus, domains = local.facts(), local.domains()
    except InputError as error:
        raise InputError(f'cluster `local`: {error}; or describe the cluster, e.g. '
                         '`24xH100-80G`') from error
    bus = _slowest([gpu.pcie_gb_s for gpu in gpus], _BUS_US)
    nvlink = _slowest([gpu.nvlink_gb_s for gpu in gpus], _NVLINK_US)
    alone = len(set(domains)) == 1 and nvlink is None
    return Cluster(
        tuple(Device(described_name(gpu.name), gpu.memory_bytes - 2 * GB, domain)
              for gpu, domain in zip(gpus, domains, strict=True)),
        fast=bus if alone else nvlink, slow=bus)


def _slowest(gb_s: Sequence[float], latency_us: float) -> Link | None:
    """The link of the slowest end; None: an end has none, or does not tell."""
    return Link(min(gb_s), latency_us) if min(gb_s) > 0 else None
