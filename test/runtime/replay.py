"""Drive a stream with known observations, and replay what it read through the oracle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from physis_core.models.protocol import ModelDescription, lead_s
from physis_core.models.registry import ModelSpec, build, describe
from physis_core.runtime.oracle import SequentialOracle
from physis_core.runtime.stream import FinishedChunk, Stream

TIMEOUT_S = 30.0

torch.set_num_threads(1)


def tiny(**options: object) -> ModelSpec:
    """A `dit` model that takes no time: 2 steps, 3 blocks unless told otherwise."""
    small = {'dim': 16, 'heads': 2, 'tokens': 3, 'steps': 2, 'blocks': 3, 'window': 3}
    return ModelSpec('dit', {**small, **options})


def draw(description: ModelDescription, random: np.random.Generator) -> dict[str, np.ndarray]:
    """A random observation."""
    arrays = {}
    for name, spec in description.observation.items():
        if spec.dtype == 'uint8':
            arrays[name] = random.integers(0, 256, spec.shape, np.uint8)
        else:
            arrays[name] = random.standard_normal(spec.shape).astype(spec.dtype)
    return arrays


@dataclass
class Recorded:
    """A stream whose observations are remembered by identity."""

    stream: Stream
    description: ModelDescription
    seed: int = 0
    observations: dict[int, tuple[Mapping[str, np.ndarray], int]] = field(default_factory=dict)

    def observe(self) -> None:
        """Give a random observation that was captured a little while ago."""
        arrays = draw(self.description, np.random.default_rng((7, len(self.observations))))
        capture_ns = time.monotonic_ns() - 3_000_000
        self.observations[self.stream.observe(arrays, capture_ns)] = (arrays, capture_ns)

    def chunk(self) -> FinishedChunk:
        """The next chunk."""
        chunk = self.stream.next_chunk(TIMEOUT_S)
        assert chunk is not None, 'no chunk came'
        return chunk

    def run(self, chunks: int) -> list[FinishedChunk]:
        """So many chunks, with a new observation after each."""
        self.observe()
        taken = []
        for _ in range(chunks):
            taken.append(self.chunk())
            self.observe()
        return taken


def largest_error(spec: ModelSpec, recorded: Recorded, chunks: list[FinishedChunk],
                  prompt: Mapping[str, np.ndarray] | None = None) -> float:
    """Largest absolute difference between an epoch's chunks and the oracle's; order is checked."""
    description = describe(spec)
    oracle = SequentialOracle(build(spec), recorded.seed, chunks[0].epoch, prompt)
    error = 0.0
    for index, chunk in enumerate(chunks):
        assert (chunk.chunk, chunk.epoch) == (index, chunks[0].epoch)
        read = [recorded.observations[identity] for identity in chunk.observation_ids]
        expected = oracle.next_chunk([arrays for arrays, _ in read],
                                     [lead_s(chunk.due_ns, capture) for _, capture in read])
        assert expected.keys() == chunk.outputs.keys() == description.outputs.keys()
        for name, array in expected.items():
            error = max(error, float(np.abs(array - chunk.outputs[name]).max()))
    return error
