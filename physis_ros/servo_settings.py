"""The parameters of `servo_node`, and the limits that are made of them."""

from __future__ import annotations

import numpy as np

from physis_core.delivery.limits import JointLimits
from physis_core.errors import InputError
from physis_ros.parameters import Setting, Settings

SERVO_SETTINGS = (
    Setting('ring', '', 'shared memory from wam_node; empty: from domain and namespace'),
    Setting('servo_hz', 250.0, 'rate of commands [Hz]', 50.0, 1000.0),
    Setting('commands_topic', '/arm_controller/commands', 'std_msgs/Float64MultiArray'),
    Setting('splice_ms', 60.0, 'time in which a jump of the plan fades out [ms]', 1.0,
            2_000.0),
    Setting('restart_tolerance', 0.1, 'a resting arm further than this from its last command was '
            'moved: a new epoch starts where it is [rad]', 0.0, 10.0),
    Setting('limits.lower', (), 'least position of each joint [rad]; empty: no limit'),
    Setting('limits.upper', (), 'greatest position of each joint [rad]; empty: no limit'),
    Setting('limits.velocity', (), 'greatest speed of each joint [rad/s]; empty: no limit'),
    Setting('limits.acceleration', (), 'greatest acceleration of each joint [rad/s^2]; empty: no '
            'limit'),
    Setting('limits.hold_deceleration', 20.0, 'with which joints come to rest [rad/s^2]', 0.01,
            10_000.0),
    Setting('real_time.priority', 80, 'of SCHED_FIFO; 0: normal scheduling', 0, 99),
    Setting('real_time.cpus', (), 'CPUs to run on; empty: any'),
    Setting('real_time.lock_memory', True, 'keep the process out of swap'),
    Setting('warn.missed_ratio', 0.01, 'share of missed ticks that is a warning', 0.0, 1.0,
            fixed_from='never'),
    Setting('error.missed_ratio', 0.1, 'share of missed ticks that is an error', 0.0, 1.0,
            fixed_from='never'),
)


def check_limits(settings: Settings) -> None:
    """Check what can be checked before the joints are known.

    Raises:
        InputError: lists of unequal length, a limit that is not positive, or bounds that leave
            nothing between them.
    """
    given: dict[str, list[float]] = {
        name: values for name in ('lower', 'upper', 'velocity', 'acceleration')
        if (values := settings[f'limits.{name}'])}
    first = next(iter(given), '')
    for name, values in given.items():
        if len(values) != len(given[first]):
            raise InputError(f'parameter `limits.{name}` has {len(values)} numbers, '
                             f'`limits.{first}` has {len(given[first])}; give one for each joint')
    for name in ('velocity', 'acceleration'):
        for index, value in enumerate(given.get(name, ())):
            if not value > 0:
                raise InputError(
                    f'parameter `limits.{name}` is {value} for joint {index + 1} of '
                    f'{len(given[name])}; it must be above 0: give a positive number, or leave '
                    'the list out for no limit')
    for index, (lower, upper) in enumerate(zip(
            given.get('lower', ()), given.get('upper', ()), strict=False)):
        if not lower < upper:
            raise InputError(
                f'parameter `limits.lower` is {lower} for joint {index + 1} of '
                f'{len(given["lower"])}; it must be below `limits.upper`, which is {upper}: '
                'correct one of them')


def joint_limits(settings: Settings, joints: tuple[str, ...]) -> JointLimits:
    """The limits of the parameters.

    Raises:
        InputError: a list that has not one number for each joint.
    """
    far = np.full(len(joints), np.inf)
    return JointLimits(
        _limit(settings, 'lower', joints, -far), _limit(settings, 'upper', joints, far),
        _limit(settings, 'velocity', joints, far), _limit(settings, 'acceleration', joints, far),
        np.full(len(joints), settings['limits.hold_deceleration']))


def _limit(settings: Settings, name: str, joints: tuple[str, ...], without: np.ndarray
           ) -> np.ndarray:
    values = settings[f'limits.{name}']
    if not values:
        return without
    if len(values) != len(joints):
        raise InputError(f'parameter `limits.{name}` has {len(values)} numbers, the ring has the '
                         f'{len(joints)} joints {", ".join(joints)}; give one for each')
    return np.asarray(values, dtype=np.float64)
