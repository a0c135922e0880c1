"""Which kernel attends fastest: measured on a block of the model, with its shapes and its mask."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from physis_core.models.protocol import ModelDescription

BY_TORCH = 'torch'
"""The name of leaving the choice to torch, which looks at shapes and dtypes."""

_BACKENDS = {'flash': SDPBackend.FLASH_ATTENTION, 'efficient': SDPBackend.EFFICIENT_ATTENTION,
             'cudnn': SDPBackend.CUDNN_ATTENTION, 'math': SDPBackend.MATH}
_SCORES_BYTES = 1 << 30  # the math kernel writes all scores out: not tried beyond that
_GAIN = 0.97  # another choice than torch's must be faster by that much, not by noise
_REPEATS = 5


@dataclass(frozen=True)
class AttentionChoice:
    """A kernel for attention, and what was measured.

    Attributes:
        name: ``flash``, ``efficient``, ``cudnn``, ``math``, or :data:`BY_TORCH`.
        times_ms: median time of the measured call by name; None: this kernel cannot run it.
    """

    name: str = BY_TORCH
    times_ms: Mapping[str, float | None] | None = None

    def applied(self) -> AbstractContextManager[object]:
        """A context in which attention uses it."""
        return attending_by(self.name)


def attending_by(name: str) -> AbstractContextManager[object]:
    """A context in which attention uses the kernel of that name, and fails where it cannot."""
    return nullcontext() if name == BY_TORCH else sdpa_kernel(_BACKENDS[name])


def candidates(description: ModelDescription, rows: int) -> list[str]:
    """The names worth trying for a batch of that many rows with full windows."""
    keys = description.kv_chunk.shape[0] * (1 + description.graph.history_slots)
    scores_bytes = 4 * rows * description.kv_heads * description.tokens * keys
    return [name for name in (BY_TORCH, *_BACKENDS)
            if name != 'math' or scores_bytes <= _SCORES_BYTES]


def fastest(call: Callable[[], object], names: Iterable[str], synchronise: Callable[[], None],
            budget_s: float = 1.0) -> AttentionChoice:
    """Time ``call`` with each kernel and choose.

    Args:
        call: runs a block as it will be run.
        names: what to try, :data:`BY_TORCH` among them.
        synchronise: waits until the device has done what it was told.
        budget_s: time for each after its first call; one whose first call is longer is judged by
            that.
    """
    times_ms: dict[str, float | None] = {}
    for name in names:
        try:
            with attending_by(name):
                times_ms[name] = _median_ms(call, synchronise, budget_s)
        except RuntimeError:  # no such kernel for this device, dtype, mask or memory
            if name == BY_TORCH:
                raise
            times_ms[name] = None
    chosen, least_ms = BY_TORCH, _GAIN * (times_ms[BY_TORCH] or 0.0)
    for name, each_ms in times_ms.items():
        if each_ms is not None and each_ms < least_ms:
            chosen, least_ms = name, each_ms
    return AttentionChoice(chosen, times_ms)


def _median_ms(call: Callable[[], object], synchronise: Callable[[], None], budget_s: float
               ) -> float:
    def time_s() -> float:
        start_s = time.perf_counter()
        call()
        synchronise()
        return time.perf_counter() - start_s

    first_s = time_s()
    if first_s > budget_s:
        return 1000 * first_s
    times_s: list[float] = []
    while not times_s or (len(times_s) < _REPEATS and sum(times_s) < budget_s):
        times_s.append(time_s())
    return 1000 * statistics.median(times_s)


def waiter_for(device: str) -> Callable[[], None]:
    """What waits until a torch device has computed what it was told.

    Only for the current stream: on others a receive may wait for a message that is still to come.
    """
    if not device.startswith('cuda'):
        return lambda: None
    return lambda: torch.cuda.current_stream(device).synchronize()
