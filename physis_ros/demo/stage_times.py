"""Computing times of the stages, from what the policy publishes on /diagnostics."""

from __future__ import annotations

from collections.abc import Mapping

_STATUS = 'wam_node: stages'
_KEY_END = ' p50 [us]'


def stage_times_us(diagnostics: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Median time of a task at each stage [us], by `step d block l`; empty: not reported."""
    return {key.removesuffix(_KEY_END): float(value)
            for key, value in diagnostics.get(_STATUS, {}).items() if key.endswith(_KEY_END)}
