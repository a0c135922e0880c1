"""The controller of the simulated arm: a process of its own, as a controller manager is.

Inside ros2_control, controllers share the loop that talks to the hardware. The hardware here is a
simulator that spends milliseconds on each camera image, so the loop lives in its own process and
keeps its beat; between the two is one topic, like a servo bus: `/so101/joint_targets`.

It takes `~/joint_trajectory` (trajectory_msgs/JointTrajectory), or by option `~/commands`
(std_msgs/Float64MultiArray), and reports what became of every trajectory on
`~/trajectory_events` (sensor_msgs/TimeReference: when it happened, the trajectory's stamp, what).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.time import Time
from sensor_msgs.msg import JointState as JointStateMessage
from sensor_msgs.msg import TimeReference
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

from physis_core.errors import InputError
from physis_core.units import NS_PER_S
from physis_ros.demo.controller import (
    CommandForwarder,
    JointState,
    Trajectory,
    TrajectoryFollower,
)
from physis_ros.demo.pace import Beat
from physis_ros.demo.topics import (
    TRAJECTORY_RECEIVED,
    TRAJECTORY_REJECTED,
    TRAJECTORY_STARTED,
)
from physis_ros.ending import endings, interrupt_once
from physis_ros.parameters import refuse_unknown
from physis_ros.starting import check_parameter_files, start_ros

MessageInfo = Mapping[str, Any]

INPUTS = ('joint_trajectory', 'forward_command')
_DIAGNOSTICS_HZ = 1.0
_SLOW = 0.9  # share of update_rate below which the controller says that it is too slow


class Controller(Node):
    """Turns trajectories or commands into joint targets at a steady beat."""

    def __init__(self) -> None:
        super().__init__('arm_controller')
        self._joints = list(self.declare_parameter('joints', ['']).value)
        self.update_rate_hz = float(self.declare_parameter('update_rate', 250.0).value)
        self._input = str(self.declare_parameter('input', INPUTS[0]).value)
        if self._input not in INPUTS:
            raise InputError(f'input is `{self._input}`; choose one of {", ".join(INPUTS)}')
        self._follower = TrajectoryFollower(
            self._joints,
            interpolate_from_desired_state=self.declare_parameter(
                'interpolate_from_desired_state', False).value,
            allow_nonzero_velocity_at_trajectory_end=self.declare_parameter(
                'allow_nonzero_velocity_at_trajectory_end', False).value,
            cmd_timeout_s=self.declare_parameter('cmd_timeout', 0.0).value)
        self._forwarder = CommandForwarder(
            self._joints, self.declare_parameter('watchdog_timeout', 0.1).value)
        refuse_unknown(self)
        self._measured: JointState | None = None
        self._active = True
        self._active_since_ns = 0
        self._stamp = Time()
        self._received = self._rejected = self._rejected_before = self._updates = 0
        self._last_rejection = ''
        self._silent = False
        self._reported_ns = time.monotonic_ns()
        self._diagnostics_beat = Beat(_DIAGNOSTICS_HZ, self._reported_ns)
        self._targets = self.create_publisher(Float64MultiArray, '/so101/joint_targets', 10)
        self._events = self.create_publisher(TimeReference, '~/trajectory_events', 50)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self.create_subscription(
            JointStateMessage, '/joint_states', self._take_state, qos_profile_sensor_data)
        if self._input == 'joint_trajectory':
            self.create_subscription(
                JointTrajectory, '~/joint_trajectory', self._take_trajectory, 10)
        else:
            self.create_subscription(
                Float64MultiArray, '~/commands', self._take_command, qos_profile_sensor_data)
        self.create_service(SetBool, '~/set_active', self._set_active)

    def update(self) -> None:
        """One beat: command the arm, if it is known where the arm is."""
        self._updates += 1
        now_ns = time.monotonic_ns()
        if self._measured is not None and self._active:
            now = self.get_clock().now()
            if self._input == 'joint_trajectory':
                target = self._follower.update(now.nanoseconds, self._measured)
                if self._follower.newly_started(now.nanoseconds):
                    self._report(TRAJECTORY_STARTED, now)
            else:
                target = self._forwarder.update(self._measured)
                self._watch(now_ns)
            self._targets.publish(Float64MultiArray(data=target.tolist()))
        if self._diagnostics_beat.strikes(now_ns):
            self._publish_diagnostics(now_ns)

    def _is_current(self, info: MessageInfo) -> bool:
        """Whether a message counts: what was sent before the activation may still be queued."""
        return self._active and info['source_timestamp'] >= self._active_since_ns

    def _take_state(self, message: JointStateMessage, info: MessageInfo) -> None:
        if not self._is_current(info):
            return
        try:
            rows = [message.name.index(name) for name in self._joints]
        except ValueError:
            self.get_logger().warn(
                f'joint states of {list(message.name)} do not name all of {self._joints}; ignored',
                throttle_duration_sec=1.0)
            return
        self._measured = JointState(
            np.array([message.position[row] for row in rows]),
            np.array([message.velocity[row] for row in rows]))

    def _take_trajectory(self, message: JointTrajectory, info: MessageInfo) -> None:
        if not self._is_current(info):
            return
        now = self.get_clock().now()
        self._received += 1
        self._stamp = Time.from_msg(message.header.stamp)
        self._report(TRAJECTORY_RECEIVED, now)
        try:
            self._follower.accept(_trajectory(message), now.nanoseconds)
        except InputError as error:
            self._refuse('trajectory', error)
            self._report(TRAJECTORY_REJECTED, now)

    def _take_command(self, message: Float64MultiArray, info: MessageInfo) -> None:
        if not self._is_current(info):
            return
        self._received += 1
        try:
            self._forwarder.accept(message.data, time.monotonic_ns())
        except InputError as error:
            self._refuse('command', error)

    def _refuse(self, what: str, error: InputError) -> None:
        self._rejected += 1
        self._last_rejection = str(error)
        self.get_logger().warn(f'{what} refused: {error}', throttle_duration_sec=1.0)

    def _watch(self, now_ns: int) -> None:
        silent = self._forwarder.silent(now_ns)
        if silent and not self._silent and self._received:
            self.get_logger().warn('no command within watchdog_timeout: holding')
        self._silent = silent

    def _set_active(self, request: SetBool.Request, response: SetBool.Response
                    ) -> SetBool.Response:
        """Inactive: no commands. Active again: hold where the arm is then."""
        self._active = request.data
        self._active_since_ns = time.time_ns()  # the clock of the middleware's stamps
        self._measured = None  # the next update waits for a state sent from now on
        self._follower.forget()
        self._forwarder.forget()
        response.success = True
        response.message = 'active' if request.data else 'inactive'
        return response

    def _report(self, event: str, now: Time) -> None:
        message = TimeReference(source=event, time_ref=self._stamp.to_msg())
        message.header.stamp = now.to_msg()
        self._events.publish(message)

    def _publish_diagnostics(self, now_ns: int) -> None:
        rate_hz = self._updates * NS_PER_S / max(now_ns - self._reported_ns, 1)
        self._updates, self._reported_ns = 0, now_ns
        fresh_rejections = self._rejected - self._rejected_before
        self._rejected_before = self._rejected
        status = DiagnosticStatus(name='arm_controller: commands', hardware_id='so101')
        status.level, status.message = DiagnosticStatus.OK, 'following'
        if not self._active:
            status.message = 'inactive'
        elif fresh_rejections:
            status.level = DiagnosticStatus.WARN
            status.message = f'refused: {self._last_rejection}'
        elif rate_hz < _SLOW * self.update_rate_hz:
            status.level = DiagnosticStatus.WARN
            status.message = 'slower than update_rate'
        elif self._silent or self._follower.holding:
            status.message = 'holding'
        status.values = [
            KeyValue(key='update_hz', value=f'{rate_hz:.1f}'),
            KeyValue(key='received', value=str(self._received)),
            KeyValue(key='rejected', value=str(self._rejected))]
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _trajectory(message: JointTrajectory) -> Trajectory:
    """The message as plain data.

    Raises:
        InputError: points of unequal size, or effort where there is no effort interface.
    """
    names = tuple(message.joint_names)
    points = message.points
    for index, point in enumerate(points):
        if len(point.effort):
            raise InputError(f'point {index} has effort, and this is a position controller')
        if len(point.positions) != len(names):
            raise InputError(f'point {index} has {len(point.positions)} positions for '
                             f'{len(names)} joints')
        if len(point.velocities) != len(points[0].velocities):
            raise InputError(f'point {index} has {len(point.velocities)} velocities, point 0 has '
                             f'{len(points[0].velocities)}; give them for all points or for none')
    velocities = None
    if points and len(points[0].velocities):
        velocities = np.array([point.velocities for point in points])
    return Trajectory(
        Time.from_msg(message.header.stamp).nanoseconds, names,
        tuple(point.time_from_start.sec * NS_PER_S + point.time_from_start.nanosec
              for point in points),
        np.array([point.positions for point in points]).reshape(len(points), len(names)),
        velocities)


def main() -> int:
    """Run the controller until it is told to stop."""
    interrupt_once(*endings())
    # The context outlives the loop.
    try:
        start_ros()
        executor = SingleThreadedExecutor()
        controller = Controller()
        check_parameter_files(controller)
        executor.add_node(controller)
        beat = Beat(controller.update_rate_hz, time.monotonic_ns())
        while True:
            while not beat.strikes(time.monotonic_ns()):
                wait_s = (beat.due_ns - time.monotonic_ns()) / NS_PER_S
                executor.spin_once(timeout_sec=max(wait_s, 0.0))
            controller.update()
    except InputError as error:
        print(f'arm_controller: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
