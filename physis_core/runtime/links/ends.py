"""Opening the ends of links: what the engine says about a link, and the transport it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from physis_core.models.protocol import ModelDescription
from physis_core.runtime.links import p2p, pieces, shm
from physis_core.runtime.links.protocol import Inlet, Outlet
from physis_core.runtime.packets import HeaderCodec, PacketLayout, chunk_layout, kv_layout
from physis_core.runtime.telemetry import EdgeMeter
from physis_core.shared_block import SharedBlock

ENGINE = -1
"""The engine's number as the end of a link."""

Wake = Callable[[], None]


@dataclass(frozen=True)
class LinkSpec:
    """All that an end must know; plain values, as JSON.

    Attributes:
        sender: device, or :data:`ENGINE`.
        receiver: device, or :data:`ENGINE`.
        kind: what it carries: ``token``, ``chunk``, ``kv`` or ``output``.
        transport: one of :data:`~physis_core.planning.plan.LINK_KINDS`.
        address: of its memory, or of the file where both ends meet.
        meter_address: of its :class:`EdgeMeter`.
        slots: messages that may be under way.
    """

    sender: int
    receiver: int
    kind: str
    transport: str
    address: str
    meter_address: str
    slots: int


def layout_of(kind: str, description: ModelDescription) -> PacketLayout:
    """The tensors that a kind of link carries."""
    if kind == 'chunk':
        return chunk_layout(description)
    if kind == 'kv':
        return kv_layout(description)
    return PacketLayout(description.outputs if kind == 'output' else {})


def open_outlet(spec: LinkSpec, description: ModelDescription, codec: HeaderCodec,
                wake_self: Wake, wake_receiver: Wake) -> Outlet:
    """The sending end of a link.

    Raises:
        WorkerLost: the receiving end does not answer.
    """
    carrier, meter = _carrier(spec, description, codec, p2p.SENDER)
    if isinstance(carrier, shm.Ring):
        return shm.ShmOutlet(carrier, meter, wake_receiver)
    if isinstance(carrier, pieces.BatchConnection):
        return pieces.PiecesOutlet(carrier, meter, wake_self)
    return p2p.P2pOutlet(carrier, meter, wake_self)


def open_inlet(spec: LinkSpec, description: ModelDescription, codec: HeaderCodec,
               wake_self: Wake, wake_sender: Wake) -> Inlet:
    """The receiving end of a link.

    Raises:
        WorkerLost: the sending end does not answer.
    """
    carrier, meter = _carrier(spec, description, codec, p2p.RECEIVER)
    if isinstance(carrier, shm.Ring):
        return shm.ShmInlet(carrier, meter, wake_sender)
    if isinstance(carrier, pieces.BatchConnection):
        return pieces.PiecesInlet(carrier, meter, wake_self)
    return p2p.P2pInlet(carrier, meter, wake_self)


def _carrier(spec: LinkSpec, description: ModelDescription, codec: HeaderCodec, end: int
             ) -> tuple[shm.Ring | pieces.BatchConnection | p2p.Connection, EdgeMeter]:
    """What carries a link, seen from one end, and its meter."""
    layout = layout_of(spec.kind, description)
    meter = EdgeMeter(SharedBlock.attach(spec.meter_address))
    if spec.transport == 'shm':
        return shm.Ring(SharedBlock.attach(spec.address), layout, codec, spec.slots), meter
    if spec.transport == 'gloo_pieces':
        return pieces.BatchConnection(spec.address, end, layout, codec, spec.slots,
                                      description.graph.passes), meter
    return p2p.Connection(spec.transport, spec.address, end, layout, codec, spec.slots), meter
