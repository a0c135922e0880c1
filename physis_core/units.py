"""Conversions between chunks, latents, frames and control points, and between time units.

This is the only place where they are made.  None of the rates here is a closed-loop frequency:
how often *newer observations* reach an output (f_replan) is measured, never converted.
"""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.errors import InputError

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000


def ns_from_s(seconds: float) -> int:
    """Seconds to whole nanoseconds."""
    return round(seconds * NS_PER_S)


def s_from_ns(nanoseconds: int) -> float:
    """Nanoseconds to seconds."""
    return nanoseconds / NS_PER_S


def ms_from_ns(nanoseconds: float) -> float:
    """Nanoseconds to milliseconds."""
    return nanoseconds / NS_PER_MS


@dataclass(frozen=True)
class OutputSemantics:
    """What one chunk of a model means outside.

    Attributes:
        latents_per_chunk: latents a chunk is made of.
        frames_per_latent: video frames one latent decodes to (0: the model shows no frames).
        control_points_per_latent: control points one latent carries (0: no actions).
        control_period_s: time between two control points [s] (0: no actions).
    """

    latents_per_chunk: int = 1
    frames_per_latent: float = 0.0
    control_points_per_latent: float = 0.0
    control_period_s: float = 0.0

    def __post_init__(self) -> None:
        if self.latents_per_chunk < 1:
            raise InputError(f'latents_per_chunk is {self.latents_per_chunk}; it is at least 1')

    @property
    def frames_per_chunk(self) -> float:
        """Video frames in a chunk."""
        return self.latents_per_chunk * self.frames_per_latent

    @property
    def control_points_per_chunk(self) -> float:
        """Control points in a chunk."""
        return self.latents_per_chunk * self.control_points_per_latent

    @property
    def chunk_duration_s(self) -> float:
        """Robot time that the control points of a chunk cover [s]; 0 without actions."""
        return self.control_points_per_chunk * self.control_period_s

    def frames_per_s(self, period_s: float) -> float:
        """Frames a second at one chunk every ``period_s``."""
        return chunks_per_s(period_s) * self.frames_per_chunk

    def control_points_per_s(self, period_s: float) -> float:
        """Control points a second at one chunk every ``period_s``: *not* a replan frequency."""
        return chunks_per_s(period_s) * self.control_points_per_chunk


def chunks_per_s(period_s: float) -> float:
    """Chunk rate [1/s] of a pipeline that delivers a chunk every ``period_s``."""
    if not period_s > 0:
        raise InputError(f'period is {period_s} s; it must be positive')
    return 1.0 / period_s
