"""From a goal in the user's words to the longest period that meets it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from physis_core.errors import InputError
from physis_core.units import OutputSemantics

_UNITS = {
    'chunks/s': 'chunks', 'chunk/s': 'chunks',
    'frames/s': 'frames', 'frame/s': 'frames', 'fps': 'frames',
    'control_points/s': 'control points', 'control_point/s': 'control points',
}
_GOAL = re.compile(r'\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]\S*)\s*', re.IGNORECASE)


@dataclass(frozen=True)
class SLO:
    """What a stream is promised.

    Attributes:
        period_us: longest interval between chunks [us].
        max_response_us: longest response [us]; None: no limit.
    """

    period_us: int
    max_response_us: int | None = None

    def __post_init__(self) -> None:
        for name in ('period_us', 'max_response_us'):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f'{name} of the SLO is {value}; it must be positive')


def period_from_goal(goal: str, semantics: OutputSemantics) -> int:
    """The longest period [us] that meets a goal such as ``'30 frames/s'``: T <= q / f.

    q is what a chunk holds of the unit.  ``Hz`` is refused: chunks, frames, control points and
    replans all have frequencies, and they differ by factors of 2 to 60.

    Raises:
        InputError: not a positive number with one of the units, or the model emits none of that.
    """
    match = _GOAL.fullmatch(goal)
    if match is None:
        raise InputError(f'goal `{goal}` is not a number and a unit; write e.g. `30 frames/s`')
    number, unit = match.groups()
    kind = _UNITS.get(unit.lower())
    if kind is None:
        raise InputError(f'unit `{unit}` of goal `{goal}` does not say what is counted; use one of '
                         'chunks/s, frames/s, control_points/s')
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if not rate > 0.0:
        raise InputError(f'goal `{goal}` asks for {number} {unit}; give a positive number')
    quantity = {'chunks': 1.0, 'frames': semantics.frames_per_chunk,
                'control points': semantics.control_points_per_chunk}[kind]
    if not quantity:
        raise InputError(f'goal `{goal}`: this model emits no {kind}; use another unit')
    return int(quantity / rate * 1e6)
