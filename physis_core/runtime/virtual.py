"""Virtual devices: a stage is a precise timed wait, everything around it is the real thing.

So a 200-stage pipeline runs on a laptop, with the same queues, links and dispatch.  A virtual
device works like a GPU with an asynchronous queue: a task that is already waiting when another
ends starts at that very moment, even if the host notices a little later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from physis_core.graph import StageGraph, Task
from physis_core.models.protocol import ModelDescription, TensorSpec
from physis_core.runtime.dispatch import Work
from physis_core.runtime.packets import NOTHING, ChunkState
from physis_core.units import NS_PER_US


@dataclass(frozen=True)
class VirtualModel:
    """A model that only takes time: a stage of B members takes ``fixed_us + B * each_us``.

    Attributes:
        graph: its stages.
        fixed_us: a of t(B) = a + b*B [us].
        each_us: b of t(B) [us].
        cv: coefficient of variation of a stage's time (normal, cut at 0.05 of the mean).
        seed: of that variation.
        synchronous: a task begins when its host starts it, as on a device without a queue, so
            that timers and the engine's own work between two tasks are seen.
    """

    graph: StageGraph
    fixed_us: float
    each_us: float
    cv: float = 0.0
    seed: int = 0
    synchronous: bool = False

    @property
    def description(self) -> ModelDescription:
        """Its description: hidden states of 256 bytes, no inputs, no outputs."""
        return ModelDescription(
            name='virtual', graph=self.graph, tokens=1, dim=64, kv_heads=1, head_dim=1,
            latent=TensorSpec((1,)), condition=TensorSpec((1,)), observation={}, outputs={})

    def stage_ns(self, batch: int) -> int:
        """Mean time of a stage [ns]."""
        return round((self.fixed_us + batch * self.each_us) * NS_PER_US)

    def to_json(self) -> str:
        """One line of JSON."""
        graph = {'steps': self.graph.steps, 'blocks': self.graph.blocks,
                 'kv_mode': self.graph.kv_mode.value, 'window_chunks': self.graph.window_chunks,
                 'sink_chunks': self.graph.sink_chunks}
        return json.dumps({'graph': graph, 'fixed_us': self.fixed_us, 'each_us': self.each_us,
                           'cv': self.cv, 'seed': self.seed,
                           'synchronous': self.synchronous})

    @classmethod
    def from_json(cls, text: str) -> VirtualModel:
        """The inverse of :meth:`to_json`."""
        data = json.loads(text)
        data['graph'] = StageGraph(**data['graph'])
        return cls(**data)


@dataclass
class VirtualExecutor:
    """The executor of a virtual device."""

    model: VirtualModel
    device: int
    holds_input: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng((self.model.seed, self.device))

    def open(self, stream: int, seed: int, stages: Sequence[tuple[int, int]],
             prompt: Mapping[str, Any]) -> None:
        """Nothing to prepare: a wait has no weights."""

    def close(self, stream: int) -> None:
        """Nothing to forget."""

    def run(self, batch: Sequence[Work], free_ns: int, now_ns: int) -> tuple[int, int]:
        """See :class:`~physis_core.runtime.executor.Executor`; ends in the future."""
        ready_ns = max(work.ready_ns for work in batch)
        waited = ready_ns <= free_ns and not self.model.synchronous
        start_ns = free_ns if waited else now_ns
        factor = 1.0
        if self.model.cv:
            factor = max(0.05, self._random.normal(1.0, self.model.cv))
        for work in batch:
            state: ChunkState = work.payload
            if not state.started_ns:
                state.started_ns = start_ns
            state.hidden = state.latent = state.condition = NOTHING
            state.kv = (NOTHING, NOTHING)
        return start_ns, start_ns + round(self.model.stage_ns(len(batch)) * factor)

    def take_kv(self, stream: int, task: Task, tensors: Mapping[str, torch.Tensor]) -> None:
        """A wait has no KV."""
