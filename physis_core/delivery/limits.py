"""Limits of the joints, kept on every command."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_core.delivery.chunk import Floats
from physis_core.errors import InputError

# Room for rounding when a command is checked against a limit.
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class JointLimits:
    """Limits, ``[joints]`` each; infinite: no limit.

    Attributes:
        lower: least positions [rad].
        upper: greatest positions [rad].
        velocity: greatest speeds [rad/s].
        acceleration: greatest accelerations [rad/s^2].
        deceleration: with which a joint comes to rest when it must hold [rad/s^2], finite.
    """

    lower: Floats
    upper: Floats
    velocity: Floats
    acceleration: Floats
    deceleration: Floats

    def __post_init__(self) -> None:
        for joint in range(len(self.lower)):
            if not self.lower[joint] < self.upper[joint]:
                raise InputError(f'joint {joint}: lower limit {self.lower[joint]} is not below '
                                 f'the upper limit {self.upper[joint]}')
        for name in ('velocity', 'acceleration', 'deceleration'):
            values = getattr(self, name)
            if len(values) != len(self.lower) or not (values > 0).all():
                raise InputError(f'{name} limits are {values.tolist()}; give one positive number '
                                 f'for each of the {len(self.lower)} joints')
        if not np.isfinite(self.deceleration).all():
            raise InputError(f'deceleration is {self.deceleration.tolist()}; it must be finite')

    @classmethod
    def none(cls, joints: int, deceleration: float = 10.0) -> JointLimits:
        """No limits but the deceleration to hold."""
        far = np.full(joints, np.inf)
        return cls(-far, far, far, far, np.full(joints, deceleration))

    def apply(self, position: Floats, velocity: Floats, wanted: Floats, wanted_velocity: Floats,
              elapsed_s: float, tick_s: float) -> tuple[Floats, Floats, bool]:
        """The next command that the limits allow.

        Args:
            position: commanded before, ``elapsed_s`` ago.
            velocity: commanded before.
            wanted: where the plan is now.
            wanted_velocity: how fast the plan moves now.
            elapsed_s: time between the commands [s].
            tick_s: the same as planned [s].  Where ticks were missed, a step is still no longer
                than the speed limit allows in one: an arm is given steps, not speeds.

        Returns:
            position, velocity, and whether a limit changed them.  A joint that is within its
            limits follows the plan exactly; one that is not catches up as fast as it may, and
            brakes in time to meet the plan without overshoot.
        """
        needed = (wanted - position) / elapsed_s
        half = 0.5 * self.acceleration * elapsed_s
        outside = (
            (np.abs(needed) > self.velocity + _TOLERANCE)
            # An even acceleration changes the speed by half before the middle of the step, by half
            # after it. Where the plan is only crossed, at another speed, it is not met yet.
            | (np.abs(needed - velocity) > half + _TOLERANCE)
            | (np.abs(wanted_velocity - needed) > half + _TOLERANCE)
            | (np.abs(wanted - position) > self.velocity * tick_s + _TOLERANCE)
            | (wanted < self.lower) | (wanted > self.upper))
        if not outside.any():
            return wanted, wanted_velocity, False
        elapsed_s = min(elapsed_s, tick_s)
        goal = np.clip(wanted, self.lower, self.upper)
        goal_velocity = np.where(goal == wanted, wanted_velocity, 0.0)
        error = goal - goal_velocity * elapsed_s - position
        # Beside the plan, the greatest speed v from which, after one step, the rest of the error
        # can be braked away: v^2 = 2 a (error - v * step), solved so that it also holds for a
        # without limit.
        distance = np.abs(error)
        able = np.minimum(self.acceleration, 1e9)
        braking = 2.0 * able * distance / (
            able * elapsed_s + np.sqrt((able * elapsed_s) ** 2 + 2.0 * able * distance))
        aim = np.clip(goal_velocity + np.sign(error) * braking, -self.velocity, self.velocity)
        step = self.acceleration * elapsed_s
        new_velocity = velocity + np.clip(aim - velocity, -step, step)
        new_position = position + new_velocity * elapsed_s
        held = np.clip(new_position, self.lower, self.upper)
        new_velocity = np.where(held == new_position, new_velocity, 0.0)
        return (np.where(outside, held, wanted), np.where(outside, new_velocity, wanted_velocity),
                True)

    def brake(self, position: Floats, velocity: Floats, elapsed_s: float
              ) -> tuple[Floats, Floats]:
        """The next command on the way to rest."""
        step = self.deceleration * elapsed_s
        slower = np.sign(velocity) * np.maximum(np.abs(velocity) - step, 0.0)
        moved = position + 0.5 * (velocity + slower) * elapsed_s
        held = np.clip(moved, self.lower, self.upper)
        return held, np.where(held == moved, slower, 0.0)
