"""The steady state of one plan under the engine's dispatch: what a prediction must meet."""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.planning.cluster import Cluster
from physis_core.planning.plan import Plan
from physis_core.planning.profile import Profile
from physis_core.simulation.jitter import STEADY, Jitter
from physis_core.simulation.twin import Stream, Twin, profile_ns

_ROUNDS = 5  # a batch of D chunks has formed after D rounds of what is in flight
_LEAST = 40


@dataclass(frozen=True)
class Steady:
    """Mean interval between outputs and mean response from a chunk's entrance [us]."""

    period_us: float
    response_us: float


def steady_state(plan: Plan, profile: Profile, cluster: Cluster, jitter: Jitter = STEADY
                 ) -> Steady:
    """Simulate a plan until its batches have formed, and measure what follows.

    The last chunks are left out: when nothing follows them, they find the devices free.
    """
    chunks = max(_LEAST, _ROUNDS * plan.max_in_flight)
    stream = Stream(
        plan, profile_ns(profile.mean_us), chunks=chunks,
        hop_ns=lambda sender, receiver: 1000 * cluster.hop_us(sender, receiver, profile.hop_bytes))
    outcome = Twin([stream], jitter).run()
    first, last = chunks // 2, chunks - plan.max_in_flight - 1
    records = outcome.chunks[0][first:last + 1]
    outputs = outcome.outputs_ns(0)
    responses = [(record.output_ns or 0) - record.entered_ns for record in records]
    return Steady((outputs[last] - outputs[first]) / (last - first) / 1e3,
                  sum(responses) / len(responses) / 1e3)
