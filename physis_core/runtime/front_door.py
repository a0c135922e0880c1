"""The front door of an engine: a stream is admitted whole or not at all.

What a stream needs (time, memory, places) is reserved by the planner's admission before anything is
touched, so a refusal changes nothing and an admitted stream keeps what it was promised.  Nobody is
ever moved to make room.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np

from physis_core.errors import PhysisError, Refused
from physis_core.planning.admission import Admission
from physis_core.planning.cluster import Cluster
from physis_core.planning.plan import BatchRule, Plan, Prediction
from physis_core.planning.profile import Profile
from physis_core.planning.slo import SLO, period_from_goal
from physis_core.planning.strategies import Strategy, portfolio
from physis_core.runtime.engine import Engine, EngineOptions
from physis_core.runtime.provision import DeviceProvision, Provision
from physis_core.runtime.stream import Stream, StreamOptions
from physis_core.runtime.virtual import VirtualModel
from physis_core.runtime.workload import Workload, description_of
from physis_core.units import NS_PER_US, OutputSemantics

_WAITS = 2  # before each stage a chunk may wait for one full batch
_CHUNKS_EACH = 4  # places for chunks under way, per stream slot


@dataclass(frozen=True)
class Visitor:
    """What a stream brings along.

    Attributes:
        seed: of its noise.
        prompt: the model's prompt inputs by name.
        queue_chunks: finished chunks kept for it.
    """

    seed: int = 0
    prompt: Mapping[str, np.ndarray] = field(default_factory=dict)
    queue_chunks: int = 8


class FrontDoor:
    """Admits streams of one model to the devices of one engine.  Use it as a context manager.

    All methods may be called from any thread; openings happen one after the other.
    """

    def __init__(self, workload: Workload, profile: Profile, cluster: Cluster, slots: int,
                 options: EngineOptions | None = None, strategy: Strategy = portfolio) -> None:
        """Start the engine, with room for ``slots`` streams.

        Args:
            workload: the model.
            profile: its stage times and sizes on these devices.
            cluster: the devices, and what streams may use of their memory.
            slots: most streams at a time, whatever the planner would still admit.
            options: of the engine.
            strategy: where new streams go.
        """
        self._description = description_of(workload)
        self._profile = profile if isinstance(workload, VirtualModel) else _preloaded(profile)
        self._admission = Admission(cluster, strategy)
        self._names = itertools.count()
        self._admitted: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self.engine = Engine(workload, _provision(profile, cluster, slots), options=options)

    def __enter__(self) -> FrontDoor:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def open_stream(self, model: str, slo: SLO | str, semantics: OutputSemantics | None = None,
                    visitor: Visitor | None = None) -> Stream:
        """Reserve everything that a stream needs, and open it.

        Args:
            model: name of the model; it is the one that this engine runs.
            slo: what the stream is promised, or a goal such as ``'30 frames/s'``.
            semantics: what a chunk means to this stream, for a goal; None: what the model says.
            visitor: what the stream brings along.

        Raises:
            Refused: there is no room, in numbers; nothing was changed.
            InputError: nobody could keep this promise, or the prompt is not the model's.
        """
        if model != self._description.name:
            raise Refused(f'model `{model}` is not served here, `{self._description.name}` is; '
                          'open the stream at its engine')
        promise = self._promise(slo, semantics)
        visitor = visitor or Visitor()
        with self._lock:
            self._let_go()
            name = f'stream-{next(self._names)}'
            plan = self._admission.admit(name, self._profile, promise)
            try:
                stream = self._open(plan, promise, visitor)
            except PhysisError:
                self._admission.leave(name)
                raise
            self._admitted[name] = stream
            return stream

    @property
    def streams(self) -> list[Stream]:
        """The admitted streams that have not ended."""
        with self._lock:
            self._let_go()
            return list(self._admitted.values())

    def reserved(self) -> list[tuple[float, int]]:
        """Of each device, the share of its time and the bytes of its memory that are promised."""
        with self._lock:
            self._let_go()
            pool = self._admission.pool
            return [(pool.utilisation(index), device.memory_bytes - pool.free_bytes[index])
                    for index, device in enumerate(pool.cluster.devices)]

    def close(self) -> None:
        """End all streams and the engine.  Safe to call twice."""
        self.engine.close()

    def _promise(self, slo: SLO | str, semantics: OutputSemantics | None) -> SLO:
        if isinstance(slo, SLO):
            return slo
        return SLO(period_from_goal(slo, semantics or self._description.semantics))

    def _open(self, plan: Plan, promise: SLO, visitor: Visitor) -> Stream:
        self._check_places(plan)
        response_us = full_batch_response_us(self._profile)
        predicted = replace(plan, prediction=Prediction(promise.period_us, response_us))
        lead_us = promise.max_response_us or _WAITS * response_us
        return self.engine.open_stream(StreamOptions(
            seed=visitor.seed, prompt=visitor.prompt, queue_chunks=visitor.queue_chunks,
            period_ns=promise.period_us * NS_PER_US, lead_ns=lead_us * NS_PER_US), predicted)

    def _check_places(self, plan: Plan) -> None:
        places = self.engine.provision.in_flight
        taken = sum(stream.plan.max_in_flight for stream in self._admitted.values())
        if taken + plan.max_in_flight > places:
            raise Refused(f'a stream of this period has up to {plan.max_in_flight} chunks under '
                          f'way, and {taken} of {places} places are taken; ask for a longer period '
                          'or start the engine with more slots')

    def _let_go(self) -> None:
        """Give back what streams had that have ended."""
        for name in [name for name, stream in self._admitted.items() if stream.ended is not None]:
            del self._admitted[name]
            self._admission.leave(name)


def full_batch_response_us(profile: Profile) -> int:
    """Time of one chunk whose every stage is in a full batch [us]."""
    graph = profile.graph
    return graph.passes * sum(profile.mean_us(block, profile.max_batch)
                              for block in range(graph.blocks))


def _preloaded(profile: Profile) -> Profile:
    """A profile for devices that hold all weights already."""
    return replace(profile, groups=tuple(replace(group, weight_bytes=0)
                                         for group in profile.groups))


def _provision(profile: Profile, cluster: Cluster, slots: int) -> Provision:
    """All weights on every device, and KV for as many streams as fit into its memory."""
    graph = profile.graph
    kv_bytes = max(1, min(group.kv_bytes for group in profile.groups))
    most = slots * graph.stages
    devices = tuple(
        DeviceProvision(tuple(range(graph.blocks)), min(most, device.memory_bytes // kv_bytes))
        for device in cluster.devices)
    return Provision(graph, devices, slots, BatchRule(profile.max_batch, across_steps=True),
                     in_flight=slots * _CHUNKS_EACH)
