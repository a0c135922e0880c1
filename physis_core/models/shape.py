"""The shape of a model: what its cost, memory and rates follow from, without any weights."""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.errors import InputError
from physis_core.graph import KVMode, StageGraph
from physis_core.units import OutputSemantics


@dataclass(frozen=True)
class ModelShape:
    """Widths and counts of one model.

    Attributes:
        name: what the shape is called on the command line.
        blocks: L, transformer blocks.
        steps: D, denoising steps.
        kv_mode: which history a task reads, by the name of a :class:`KVMode`.
        dim: width of the hidden state.
        inner: width of queries, keys and values (heads times head width).
        ffn: width of the feed-forward network.
        gated_ffn: whether it is gated (three matrices instead of two).
        text_tokens: tokens of the prompt that cross-attention reads (0: no cross-attention).
        tokens_per_latent: tokens of one latent.
        extra_tokens: tokens of a chunk besides those of its latents (state, actions).
        latents_per_chunk: latents a chunk is made of.
        window_latents: latents a task attends to, its own chunk included, sinks not.
        sink_latents: first latents of a session that stay visible for ever.
        frames_per_latent: video frames of one latent (0: none).
        control_points_per_latent: control points of one latent (0: none).
        control_period_s: time between control points [s].
        bytes_per_number: of weights, hidden states and KV.
        dtype: the name of that format.
    """

    name: str
    blocks: int
    steps: int
    kv_mode: str
    dim: int
    inner: int
    ffn: int
    tokens_per_latent: int
    latents_per_chunk: int
    window_latents: int
    gated_ffn: bool = False
    text_tokens: int = 0
    extra_tokens: int = 0
    sink_latents: int = 0
    frames_per_latent: float = 0.0
    control_points_per_latent: float = 0.0
    control_period_s: float = 0.0
    bytes_per_number: int = 2
    dtype: str = 'bfloat16'

    def __post_init__(self) -> None:
        if self.kv_mode not in [mode.value for mode in KVMode]:
            raise InputError(f'{self.name}: kv_mode is `{self.kv_mode}`; '
                             f'choose one of {", ".join(mode.value for mode in KVMode)}')
        if self.window_latents < self.latents_per_chunk:
            raise InputError(
                f'{self.name}: window_latents is {self.window_latents}, but a chunk has '
                f'{self.latents_per_chunk} and sees itself; give at least as many')

    @property
    def tokens(self) -> int:
        """N, tokens of one chunk in a block."""
        return self.latents_per_chunk * self.tokens_per_latent + self.extra_tokens

    @property
    def context_tokens(self) -> int:
        """Tokens a task attends to when the window is full."""
        chunks = (self.window_latents + self.sink_latents) / self.latents_per_chunk
        return round(chunks * self.tokens)

    @property
    def graph(self) -> StageGraph:
        """Its stages.  Windows and sinks count in whole chunks there, rounded up."""
        earlier = -(-(self.window_latents - self.latents_per_chunk) // self.latents_per_chunk)
        sinks = -(-self.sink_latents // self.latents_per_chunk)
        return StageGraph(self.steps, self.blocks, KVMode(self.kv_mode),
                          window_chunks=max(earlier, 1 if sinks else 0), sink_chunks=sinks)

    @property
    def semantics(self) -> OutputSemantics:
        """What a chunk of it means outside."""
        return OutputSemantics(self.latents_per_chunk, self.frames_per_latent,
                               self.control_points_per_latent, self.control_period_s)
