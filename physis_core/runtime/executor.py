"""Computing the stages of a model on one device."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from physis_core.errors import StreamError
from physis_core.graph import StageGraph, Task
from physis_core.models.protocol import StageModel, chunk_noise, lead_s
from physis_core.runtime.attention_backend import waiter_for
from physis_core.runtime.boards import Observation
from physis_core.runtime.dispatch import Work
from physis_core.runtime.kv_pool import KvPool, PoolHistory, Row
from physis_core.runtime.packets import NOTHING, ChunkState

Observe = Callable[[int], Observation | None]
"""The newest observation of a stream slot."""

RunBlock = Callable[[int, torch.Tensor, torch.Tensor, PoolHistory, Sequence[Any]], torch.Tensor]
"""Runs a block, as :meth:`StageModel.block` does."""


class Executor(Protocol):
    """What a device does with a batch."""

    holds_input: bool
    """Whether a batch reads its input in place, in the link, until it has ended."""

    def open(self, stream: int, seed: int, stages: Sequence[tuple[int, int]],
             prompt: Mapping[str, np.ndarray]) -> None:
        """Prepare for a stream whose ``stages`` (step, block) are here."""
        ...

    def close(self, stream: int) -> None:
        """Forget a stream."""
        ...

    def run(self, batch: Sequence[Work], free_ns: int, now_ns: int) -> tuple[int, int]:
        """Run a batch on a device free since ``free_ns``; returns when it starts and ends [ns].

        Where it raises, the chunks are as they were, so that the rest can run without the one at
        fault.
        """
        ...

    def take_kv(self, stream: int, task: Task, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep the ``keys`` and ``values`` that another device wrote for this one's tasks."""
        ...


class ModelExecutor:
    """Runs the blocks of a :class:`StageModel` that live on this device.

    Args:
        model: its weights are on ``place``.
        pool: of the histories, there too.
        observe: where observations come from.
        place: the torch device.
        run_block: runs a block; None: the model itself, eagerly.
    """

    holds_input = True

    def __init__(self, model: StageModel, pool: KvPool, observe: Observe, place: str = 'cpu',
                 run_block: RunBlock | None = None) -> None:
        self._model = model
        self._run_block = run_block or model.block
        self._place = place
        self._stack = _stack if place == 'cpu' else partial(_stack_on, torch.device(place))
        self._await = waiter_for(place)
        self._description = model.description
        self._graph: StageGraph = model.description.graph
        self._said = f'model `{model.description.name}`:'
        self._hidden_shape = model.description.hidden.shape
        self._kv_shape = model.description.kv_chunk.shape
        self._is_read = [bool(self._graph.kv_reader_steps(step))
                         for step in range(self._graph.passes)]
        self._pool = pool
        self._observe = observe
        self._seeds: dict[int, int] = {}
        self._contexts: dict[int, Any] = {}
        self._steps: dict[tuple[int, ...], torch.Tensor] = {}
        self._latest: tuple[list[ChunkState], torch.Tensor] = ([], NOTHING)

    def open(self, stream: int, seed: int, stages: Sequence[tuple[int, int]],
             prompt: Mapping[str, np.ndarray]) -> None:
        """See :class:`Executor`."""
        context = self._model.context(prompt)  # before anything is set aside: it may fail
        self._pool.open(stream, stages)
        self._contexts[stream] = context
        self._seeds[stream] = seed

    def close(self, stream: int) -> None:
        """See :class:`Executor`."""
        self._pool.close(stream)
        self._contexts.pop(stream, None)
        self._seeds.pop(stream, None)

    def run(self, batch: Sequence[Work], free_ns: int, now_ns: int) -> tuple[int, int]:
        """See :class:`Executor`; the work is done when it returns."""
        block = batch[0].task.block
        states: list[ChunkState] = [work.payload for work in batch]
        steps = self._step_tensor(tuple(work.task.step for work in batch))
        if block == 0:
            for work in batch:
                self._enter_step(work)
            hidden = self._model.embed(self._stack([s.latent for s in states]),
                                       self._stack([s.condition for s in states]), steps)
        else:
            hidden = self._hidden(states)
        rows = [Row(work.stream, work.task.chunk, work.task.step) for work in batch]
        history = self._pool.history(block, rows)
        hidden = self._run_block(block, hidden, steps, history,
                                 [self._contexts[work.stream] for work in batch])
        if hidden.shape != (len(rows), *self._hidden_shape):
            self._refuse('block() returned', hidden.shape[1:], self._hidden_shape)
        if history.keys.shape[1:] != self._kv_shape or history.values.shape[1:] != self._kv_shape:
            self._refuse('history.extend() was given', history.keys.shape[1:], self._kv_shape)
        if block == self._graph.blocks - 1:
            self._leave_step(batch, hidden, steps)
        for state, row, one, keys, values in zip(
                states, rows, hidden.unbind(), history.keys.unbind(), history.values.unbind(),
                strict=True):
            state.hidden = one
            if self._is_read[row.step]:
                self._pool.write(row, block, keys, values)
                state.kv = (keys, values)
        self._latest = (states, hidden)
        self._await()
        return now_ns, time.monotonic_ns()

    def _outputs(self, latent: torch.Tensor, condition: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a chunk has come to."""
        outputs = self._model.decode(latent, condition)
        specs = self._description.outputs
        if outputs.keys() != specs.keys():
            raise StreamError(f'{self._said} decode() returned {sorted(outputs)}, the description '
                              f'says {sorted(specs)}')
        for name, array in outputs.items():
            if array.shape != specs[name].shape:
                self._refuse(f'decode() returned `{name}` as', array.shape, specs[name].shape)
        return {name: torch.from_numpy(np.ascontiguousarray(array))
                for name, array in outputs.items()}

    def take_kv(self, stream: int, task: Task, tensors: Mapping[str, torch.Tensor]) -> None:
        """See :class:`Executor`."""
        self._pool.write(Row(stream, task.chunk, task.step), task.block, tensors['keys'],
                         tensors['values'])

    def _enter_step(self, work: Work) -> None:
        """At the start: noise and the newest observation; later: a newer one, if so declared."""
        state: ChunkState = work.payload
        step = work.task.step
        if step == 0:
            state.latent = self._noise(work, 0)
        if step == 0 or (self._description.late_binding and step < self._graph.steps):
            observation = self._observe(work.stream)
            if observation is None:
                raise StreamError('there is no observation yet; observe() first')
            state.condition = self._model.encode(
                observation.arrays, lead_s(state.due_ns, observation.capture_ns))
            if state.condition.shape != self._description.condition.shape:
                self._refuse('encode() returned', state.condition.shape,
                             self._description.condition.shape)
            state.observation_ids[step] = observation.identity
            if step == 0:
                state.started_ns = time.monotonic_ns()
                state.capture_ns = observation.capture_ns
                state.received_ns = observation.received_ns
        elif step < self._graph.steps:
            state.observation_ids[step] = state.observation_ids[step - 1]

    def _leave_step(self, batch: Sequence[Work], hidden: torch.Tensor, steps: torch.Tensor
                    ) -> None:
        """Head and step update for the rows that are at a denoising step, decoding after the last.
        """
        rows = [i for i, work in enumerate(batch) if work.task.step < self._graph.steps]
        if not rows:
            return
        states: list[ChunkState] = [batch[i].payload for i in rows]
        noises = None
        if self._description.renoise:
            noises = self._stack([self._noise(batch[i], batch[i].task.step + 1) for i in rows])
        if len(rows) < len(batch):
            hidden, steps = hidden[rows], steps[rows]
        latents = self._model.step_update(
            hidden, self._stack([s.latent for s in states]),
            self._stack([s.condition for s in states]), noises, steps)
        if latents.shape != (len(rows), *self._description.latent.shape):
            self._refuse('step_update() returned', latents.shape[1:],
                         self._description.latent.shape)
        updated = latents.unbind()
        outputs = {i: self._outputs(updated[i], states[i].condition) for i, row in enumerate(rows)
                   if batch[row].task.step == self._graph.steps - 1}
        for i, (state, latent) in enumerate(zip(states, updated, strict=True)):
            state.latent, state.outputs = latent, outputs.get(i, {})

    def _refuse(self, what: str, given: Sequence[int], declared: Sequence[int]) -> NoReturn:
        raise StreamError(f'{self._said} {what} {list(given)}, the description says '
                          f'{list(declared)}')

    def _hidden(self, states: list[ChunkState]) -> torch.Tensor:
        """Hidden states of a batch; one that stays together need not be put together again."""
        latest, hidden = self._latest
        if len(latest) == len(states) and all(map(operator.is_, latest, states)):
            return hidden
        return self._stack([state.hidden for state in states])

    def _noise(self, work: Work, step: int) -> torch.Tensor:
        return chunk_noise(self._description.latent, self._seeds[work.stream], work.epoch,
                           work.task.chunk, step)

    def _step_tensor(self, steps: tuple[int, ...]) -> torch.Tensor:
        if steps not in self._steps:
            if len(self._steps) >= 4096:
                self._steps.clear()
            self._steps[steps] = torch.tensor(steps, device=self._place)
        return self._steps[steps]


def _stack(tensors: Sequence[Any]) -> torch.Tensor:
    return tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors))


def _stack_on(device: torch.device, tensors: Sequence[Any]) -> torch.Tensor:
    """The same on a device, wherever the tensors lie: noise, or what a link left on the CPU."""
    return _stack([tensor.to(device) for tensor in tensors])
