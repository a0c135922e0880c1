"""Which links an engine has: made when a plan first needs them, forgotten with a lost device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from physis_core.models.protocol import ModelDescription
from physis_core.planning.plan import Plan
from physis_core.runtime.links.ends import (
    ENGINE,
    LinkSpec,
    layout_of,
    open_inlet,
    open_outlet,
)
from physis_core.runtime.links.p2p import Rendezvous
from physis_core.runtime.links.protocol import Outlet
from physis_core.runtime.links.shm import ShmInlet, create_ring
from physis_core.runtime.packets import HeaderCodec
from physis_core.runtime.provision import Provision
from physis_core.runtime.telemetry import EdgeMeter
from physis_core.shared_block import SharedBlock


class LinkKey(NamedTuple):
    """A link: its ends (devices, or :data:`ENGINE`) and what it carries."""

    sender: int
    receiver: int
    kind: str


class _Link(NamedTuple):
    spec: LinkSpec
    memory: SharedBlock | Rendezvous
    meter: EdgeMeter

    def close(self) -> None:
        self.memory.close()
        self.meter.block.close()


class Wiring:
    """The links of an engine, and its own ends of them: entrances and exits by device."""

    def __init__(self, description: ModelDescription, provision: Provision,
                 host_of: Sequence[int], in_place: bool, codec: HeaderCodec,
                 waker: Callable[[int], Callable[[], None]]) -> None:
        """Describe what links will be between.

        Args:
            description: of the model.
            provision: the devices, and what may be under way.
            host_of: host process of every device.
            in_place: whether a task in service keeps the place its input came in.
            codec: of headers.
            waker: makes, for a device, the function that tells it of news.
        """
        self._description = description
        self._provision = provision
        self._host_of = host_of
        self._in_place = in_place
        self._codec = codec
        self._waker = waker
        self._links: dict[LinkKey, _Link] = {}
        self.entrances: dict[int, Outlet] = {}
        self.exits: dict[int, ShmInlet] = {}

    @property
    def meters(self) -> dict[LinkKey, EdgeMeter]:
        """What each link carried so far."""
        return {key: link.meter for key, link in self._links.items()}

    def missing(self, plan: Plan) -> list[LinkKey]:
        """The links that a plan needs and that are not there, in an order that all hosts keep."""
        wanted = [LinkKey(ENGINE, plan.device_of(0), 'token'),
                  LinkKey(plan.device_of(plan.graph.output_stage), ENGINE, 'output')]
        wanted += [LinkKey(a, b, 'chunk') for a, b in plan.edges()]
        wanted += [LinkKey(a, b, 'kv') for a, b in _kv_edges(plan)]
        return [key for key in wanted if key not in self._links]

    def hosts_of(self, key: LinkKey) -> set[int]:
        """The host processes at the ends of a link."""
        return {self._host_of[device] for device in key[:2] if device != ENGINE}

    def make(self, key: LinkKey) -> LinkSpec:
        """Make a link and take the engine's end of it, if that is one."""
        transport = self._transport(key)
        slots = self._slots(key)
        meter = EdgeMeter.create()
        memory = (create_ring(layout_of(key.kind, self._description), self._codec, slots)
                  if transport == 'shm' else Rendezvous())
        spec = LinkSpec(*key, transport, memory.address, meter.block.address, slots)
        self._links[key] = _Link(spec, memory, meter)
        if key.sender == ENGINE:
            wake = self._waker(key.receiver)
            self.entrances[key.receiver] = open_outlet(
                spec, self._description, self._codec, wake, wake)
        if key.receiver == ENGINE:
            wake = self._waker(key.sender)
            exit_ = open_inlet(spec, self._description, self._codec, wake, wake)
            assert isinstance(exit_, ShmInlet)
            self.exits[key.sender] = exit_
        return spec

    def forget(self, keys: Collection[LinkKey]) -> None:
        """Forget links; what is under way in them is lost."""
        for key in keys:
            if key in self._links:
                self._links.pop(key).close()

    def forget_devices(self, devices: Collection[int]) -> None:
        """Forget the links to and from devices that are gone."""
        self.forget([key for key in self._links if {*key[:2]} & {*devices}])
        for device in devices:
            self.entrances.pop(device, None)
            self.exits.pop(device, None)

    def close(self) -> None:
        """Forget all links."""
        self.forget(list(self._links))

    def _transport(self, key: LinkKey) -> str:
        """The plan's, between host processes; the engine and its devices share a host."""
        if ENGINE in key[:2] or len(self.hosts_of(key)) == 1:
            return 'shm'
        return self._provision.link

    def _slots(self, key: LinkKey) -> int:
        """Places of a link.

        Between devices that hold one stage each, what the plan says (and one for the task in
        service, where that is read in place).  Elsewhere devices take in whatever arrives, so
        that a ring of devices cannot block itself; the cap on chunks in flight bounds it.
        """
        in_flight = self._provision.in_flight
        if key.kind == 'chunk' and self._provision.devices[key.receiver].single_stage:
            return self._provision.slots_per_edge + self._in_place
        if key.kind == 'kv':
            return in_flight * self._description.graph.blocks
        return in_flight


def _kv_edges(plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs (writer, reader) of different devices between which KV travels."""
    graph = plan.graph
    pairs = {(plan.device_of(stage), reader)
             for stage in range(graph.stages)
             for reader in plan.kv_devices(*graph.step_block(stage))}
    yield from sorted((writer, reader) for writer, reader in pairs if writer != reader)
