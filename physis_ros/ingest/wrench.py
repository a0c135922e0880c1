"""Forces and torques as an array."""

from __future__ import annotations

import numpy as np
from geometry_msgs.msg import Vector3, Wrench, WrenchStamped

from physis_core.errors import InputError

AXES = ('force.x', 'force.y', 'force.z', 'torque.x', 'torque.y', 'torque.z')


def wrench_of(message: WrenchStamped, frame: str) -> np.ndarray:
    """Force [N] and torque [N m], float32 ``[6]``.

    Args:
        message: as the driver sends it.
        frame: that it must be expressed in; empty: any.

    Raises:
        InputError: another frame, or a value that is not finite.
    """
    found = message.header.frame_id
    if frame and found != frame:
        raise InputError(f'wrench: it is in frame `{found:.80}`, the model takes `{frame}`; '
                         'transform it, or correct `wrench.frame`; the message is refused')
    force, torque = message.wrench.force, message.wrench.torque
    values = np.array([force.x, force.y, force.z, torque.x, torque.y, torque.z], np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise InputError(f'wrench: {AXES[bad[0]]} is {values[bad[0]]}; it must be finite, the '
                         'message is refused')
    return values


def wrench_message(values: np.ndarray, frame: str) -> WrenchStamped:
    """The message that :func:`wrench_of` makes these six values of; its stamp is not set."""
    force, torque = values.ravel().astype(float).reshape(2, 3).tolist()
    message = WrenchStamped(wrench=Wrench(
        force=Vector3(x=force[0], y=force[1], z=force[2]),
        torque=Vector3(x=torque[0], y=torque[1], z=torque[2])))
    message.header.frame_id = frame
    return message
