"""Computing times of the stages, from what the policy publishes on /diagnostics."""

from __future__ import annotations

from collections.abc import Mapping

_PREFIX = 'stage '
_SUFFIX = ' mean_us'


def stage_times_us(diagnostics: Mapping[str, Mapping[str, str]]) -> dict[str, float]:
    """Mean time of one task [us] by stage (or worker), as far as the policy reports it."""
    return {
        key.removeprefix(_PREFIX).removesuffix(_SUFFIX): float(value)
        for values in diagnostics.values() for key, value in values.items()
        if key.startswith(_PREFIX) and key.endswith(_SUFFIX)}
