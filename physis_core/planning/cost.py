"""What a stage costs, from the model's shape and the device's description.

Per chunk, with N tokens, context ctx and inner width q (bf16 unless the shape says otherwise)::

    F      = 2 N P_act + 4 N ctx q + 4 N text q     multiply-adds count two
    KV     = 2 ctx q bytes_per_number
    hop    = N dim bytes_per_number
    t(B)   = launch + max(B F / arithmetic, (weights + B KV) / memory bandwidth)

P_act are the parameters that act on the chunk's tokens: keys and values of the prompt are computed
once per prompt, modulation once per stage.  Checked against published intervals to about 4 %.
"""

from __future__ import annotations

from physis_core.models.shape import ModelShape
from physis_core.planning.devices import DeviceModel
from physis_core.planning.profile import BatchTimes, BlockGroup, Profile


def analytic_profile(shape: ModelShape, device: DeviceModel, max_batch: int) -> Profile:
    """The profile of a model on a device that need not be there.

    Mean, p50 and p99 are equal: a formula has no jitter.
    """
    times = tuple(stage_us(shape, device, batch) for batch in range(1, max_batch + 1))
    group = BlockGroup(
        blocks=shape.blocks,
        times=BatchTimes(times, times, times),
        weight_bytes=weight_bytes(shape),
        kv_bytes=kv_bytes(shape),
        activation_bytes=activation_bytes(shape))
    return Profile(
        model=shape.name, device=device.name, dtype=shape.dtype, source='analytic',
        graph=shape.graph, window_tokens=shape.context_tokens, groups=(group,),
        hop_bytes=hop_bytes(shape), workspace_bytes=0)


def stage_us(shape: ModelShape, device: DeviceModel, batch: int) -> int:
    """t(B), whole microseconds."""
    arithmetic_us = batch * stage_flops(shape) / (device.effective_tflops * 1e6)
    moved = weight_bytes(shape) + batch * kv_bytes(shape)
    memory_us = moved / (device.memory_bandwidth_gb_s * 1e3)
    return round(device.launch_us + max(arithmetic_us, memory_us))


def stage_flops(shape: ModelShape) -> int:
    """F, floating-point operations of one block on one chunk."""
    attended = shape.context_tokens + shape.text_tokens
    return 2 * shape.tokens * _acting_parameters(shape) + 4 * shape.tokens * attended * shape.inner


def weight_bytes(shape: ModelShape) -> int:
    """Matrices of one block, those that only the prompt meets included."""
    prompt_only = 2 * shape.dim * shape.inner if shape.text_tokens else 0
    return (_acting_parameters(shape) + prompt_only) * shape.bytes_per_number


def kv_bytes(shape: ModelShape) -> int:
    """Keys and values of a full window at one stage of one stream."""
    return 2 * shape.context_tokens * shape.inner * shape.bytes_per_number


def hop_bytes(shape: ModelShape) -> int:
    """One chunk's hidden state."""
    return shape.tokens * shape.dim * shape.bytes_per_number


def activation_bytes(shape: ModelShape) -> int:
    """Largest intermediate results of one chunk in a block: the feed-forward network's."""
    wide = shape.ffn * (2 if shape.gated_ffn else 1)
    return shape.tokens * (shape.dim + wide) * shape.bytes_per_number


def _acting_parameters(shape: ModelShape) -> int:
    attention = 4 * shape.dim * shape.inner
    prompt = 2 * shape.dim * shape.inner if shape.text_tokens else 0
    return attention + prompt + (3 if shape.gated_ffn else 2) * shape.dim * shape.ffn
