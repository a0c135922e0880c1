"""The front door of an engine: a stream is admitted whole or not at all.

What a stream needs (time, memory, places) is reserved by the planner's admission before anything is
touched, so a refusal changes nothing and an admitted stream keeps what it was promised.  Nobody is
ever moved to make room.  A thread watches the devices: while one is overloaded no best-effort
stream is let in, while those with a promise overload it nobody is, and the least important streams
shed chunks at the entrance.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np

from physis_core.errors import InputError, PhysisError, Refused
from physis_core.planning.admission import Admission
from physis_core.planning.cluster import Cluster
from physis_core.planning.plan import BatchRule, Plan, Prediction
from physis_core.planning.profile import BatchTimes, Profile
from physis_core.planning.slo import SLO, period_from_goal
from physis_core.planning.strategies import Strategy, portfolio
from physis_core.runtime.engine import Engine, EngineOptions
from physis_core.runtime.off_profile import OffProfile, off_profile
from physis_core.runtime.overload import Overload, OverloadWatch, Queued
from physis_core.runtime.provision import DeviceProvision, Provision
from physis_core.runtime.relief import BEST_EFFORT, Relief
from physis_core.runtime.stream import Stream, StreamOptions
from physis_core.runtime.virtual import VirtualModel
from physis_core.runtime.workload import Workload, description_of
from physis_core.units import NS_PER_US, OutputSemantics

HEADROOM = 0.1

_WAITS = 2  # before each stage a chunk may wait for one full batch
_LOOK_S = 0.1
_LOOKS_PER_ANSWER = 3
_RECENT_TASKS = 2048
_CHUNKS_EACH = 4  # places for chunks under way, per stream slot


@dataclass(frozen=True)
class Visitor:
    """What a stream brings along.

    Attributes:
        seed: of its noise.
        prompt: the model's prompt inputs by name.
        queue_chunks: finished chunks kept for it.
        priority: under overload streams of a lower one give way first; a negative one is best
            effort: nothing is reserved, and the stream runs while others are ahead of their plan.
    """

    seed: int = 0
    prompt: Mapping[str, np.ndarray] = field(default_factory=dict)
    queue_chunks: int = 8
    priority: int = 0


class FrontDoor:
    """Admits streams of one model to the devices of one engine.  Use it as a context manager.

    All methods may be called from any thread; openings happen one after the other.
    """

    def __init__(self, workload: Workload, profile: Profile, cluster: Cluster, slots: int,
                 options: EngineOptions | None = None, strategy: Strategy = portfolio,
                 headroom: float = HEADROOM) -> None:
        """Start the engine, with room for ``slots`` streams.

        Args:
            workload: the model.
            profile: its stage times and sizes on these devices.
            cluster: the devices, and what streams may use of their memory.
            slots: most streams at a time, whatever the planner would still admit.
            options: of the engine.
            strategy: where new streams go.
            headroom: share of every device's time that is never promised: a device without any
                never catches up once it is behind.
        """
        self._description = description_of(workload)
        held = profile if isinstance(workload, VirtualModel) else _preloaded(profile)
        self._profile = profile
        self._planned = with_headroom(held, headroom)
        self._cluster = cluster
        self._strategy = strategy
        self._admission = Admission(cluster, strategy)
        self._names = itertools.count()
        self._admitted: dict[str, Stream] = {}
        self._unpromised: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._overloads: list[Overload] = []
        self.engine = Engine(workload, _provision(profile, cluster, slots), options=options)
        self._watch = OverloadWatch(profile.graph, len(cluster.devices), slots, profile.max_batch)
        self._relief = Relief(self.engine.give_way)
        self._logged = [0] * len(cluster.devices)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name='physis-door', daemon=True)
        self._thread.start()

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
            best_effort = visitor.priority <= BEST_EFFORT
            self._refuse_in_overload(best_effort)
            if best_effort:
                return self._open_unpromised(name, promise, visitor)
            plan = self._admission.admit(name, self._planned, promise)
            try:
                stream = self._open(plan, promise, visitor)
            except PhysisError:
                self._admission.leave(name)
                raise
            self._admitted[name] = stream
            return stream

    @property
    def streams(self) -> list[Stream]:
        """The streams that have not ended, those without a promise last."""
        with self._lock:
            self._let_go()
            return [*self._admitted.values(), *self._unpromised.values()]

    @property
    def overloads(self) -> list[Overload]:
        """The devices that are overloaded now."""
        return list(self._overloads)

    @property
    def shedding(self) -> dict[int, int]:
        """Slots of the streams that shed at the entrance, and of how many chunks they keep one."""
        return self._relief.shedding

    def off_profile(self) -> list[OffProfile]:
        """Blocks that lately took another time than their profile says."""
        return off_profile(self._profile, [log.latest(_RECENT_TASKS)
                                           for log in self.engine.stage_logs()])

    def reserved(self) -> list[tuple[float, int]]:
        """Of each device, the share of its time and the bytes of its memory that are promised."""
        with self._lock:
            self._let_go()
            pool = self._admission.pool
            return [(pool.utilisation(index), device.memory_bytes - pool.free_bytes[index])
                    for index, device in enumerate(pool.cluster.devices)]

    def close(self) -> None:
        """End all streams and the engine.  Safe to call twice."""
        self._closing.set()
        self._thread.join()
        self.engine.close()

    # -- opening -----------------------------------------------------------------------------------

    def _promise(self, slo: SLO | str, semantics: OutputSemantics | None) -> SLO:
        if isinstance(slo, SLO):
            return slo
        return SLO(period_from_goal(slo, semantics or self._description.semantics))

    def _open_unpromised(self, name: str, promise: SLO, visitor: Visitor) -> Stream:
        """Open a best-effort stream where it would go if the devices were empty."""
        plan = Admission(self._cluster, self._strategy).admit(name, self._planned, promise)
        stream = self._unpromised[name] = self._open(plan, promise, visitor)
        self.engine.give_way(stream, True)
        return stream

    def _open(self, plan: Plan, promise: SLO, visitor: Visitor) -> Stream:
        self._check_places(plan)
        predicted = predicted_plan(plan, self._profile, promise)
        lead_us = promised_response_us(self._profile, promise)
        return self.engine.open_stream(StreamOptions(
            seed=visitor.seed, prompt=visitor.prompt, queue_chunks=visitor.queue_chunks,
            priority=visitor.priority, period_ns=promise.period_us * NS_PER_US,
            lead_ns=lead_us * NS_PER_US, skip_late=True), predicted)

    def _check_places(self, plan: Plan) -> None:
        provision = self.engine.provision
        places = provision.in_flight
        open_now = (*self._admitted.values(), *self._unpromised.values())
        taken = sum(stream.plan.max_in_flight for stream in open_now)
        if len(open_now) < provision.slots and taken + plan.max_in_flight > places:
            raise Refused(f'a stream of this period has up to {plan.max_in_flight} chunks under '
                          f'way, and {taken} of {places} places are taken; ask for a longer period '
                          'or start the engine with more slots')

    def _refuse_in_overload(self, best_effort: bool) -> None:
        for overload in self._overloads:
            if best_effort or overload.promised:
                kind = 'best-effort stream' if best_effort else 'stream'
                raise Refused(f'no {kind} is admitted during an overload: {overload}; try again '
                              'when it is over')

    def _let_go(self) -> None:
        """Give back what streams had that have ended."""
        for name in [name for name, stream in self._admitted.items() if stream.ended is not None]:
            del self._admitted[name]
            self._admission.leave(name)
        for name in [name for name, stream in self._unpromised.items() if stream.ended is not None]:
            del self._unpromised[name]

    # -- overload ----------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """The thread that watches the devices."""
        looks = 0
        while not self._closing.wait(_LOOK_S):
            streams = self.streams
            queued = [Queued(stream.slot, stream.plan, stream.epoch, stream.released,
                             stream.held_back, stream.options.priority > BEST_EFFORT)
                      for stream in streams]
            self._overloads = self._watch.look(self._new_records(), queued)
            looks += 1
            if looks % _LOOKS_PER_ANSWER == 0:
                self._relief.answer(self._overloads, streams)

    def _new_records(self) -> list[np.ndarray]:
        """The tasks that each device has ended since the last look."""
        records = []
        for device, log in enumerate(self.engine.stage_logs()):
            total = log.total
            records.append(log.latest(total - self._logged[device]))
            self._logged[device] = total
        return records


def promised_response_us(profile: Profile, promise: SLO) -> int:
    """How long after its planned entrance a chunk is due [us]."""
    return promise.max_response_us or _WAITS * full_batch_response_us(profile)


def predicted_plan(plan: Plan, profile: Profile, promise: SLO) -> Plan:
    """The plan with what is expected of it: every stage of a chunk in a full batch."""
    return replace(plan, prediction=Prediction(
        promise.period_us, full_batch_response_us(profile)))


def full_batch_response_us(profile: Profile) -> int:
    """Time of one chunk whose every stage is in a full batch [us]."""
    graph = profile.graph
    return graph.passes * sum(profile.mean_us(block, profile.max_batch)
                              for block in range(graph.blocks))


def with_headroom(profile: Profile, headroom: float) -> Profile:
    """The profile to plan with: a share of every device's time is kept back."""
    if not 0.0 <= headroom < 1.0:
        raise InputError(f'headroom is {headroom:g}; it is at least 0 and below 1')

    def slower(times: BatchTimes) -> BatchTimes:
        return replace(times, p99_us=tuple(math.ceil(time_us / (1.0 - headroom))
                                           for time_us in times.p99_us))
    return replace(profile, groups=tuple(replace(group, times=slower(group.times))
                                         for group in profile.groups))


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
                     in_flight=slots * _CHUNKS_EACH,
                     times_us=tuple(profile.group_of(block).times.p99_us
                                    for block in range(graph.blocks)))
