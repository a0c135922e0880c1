"""The simulated robot: an SO-101 arm with two cameras, in real time, as a driver would show it.

The main thread owns the physics and the node's callbacks; the cameras draw in a thread of their
own. Simulated time follows the steady clock; stamps are the ROS time of capture.
"""

from __future__ import annotations

import array
import sys
import time
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from numpy.typing import NDArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import SetBool, Trigger

from physis_core.errors import InputError
from physis_core.units import NS_PER_S
from physis_ros.demo.cameras import Cameras, Snapshot
from physis_ros.demo.pace import Beat, Pace
from physis_ros.demo.scene import CAMERAS, IMAGE_SIZE, JOINT_NAMES, Scene
from physis_ros.demo.topics import TASK_STATUS
from physis_ros.ending import endings, interrupt_once
from physis_ros.parameters import refuse_unknown
from physis_ros.starting import check_parameter_files, start_ros

_DIAGNOSTICS_HZ = 1.0
_TASK_HZ = 25.0
_SLIP_WARN = 0.98  # real-time factor below which the robot says that it is too slow


class SimulatedRobot(Node):
    """Publishes what the robot senses, obeys joint targets, and knows whether the task is done."""

    def __init__(self, scene: Scene) -> None:
        super().__init__('so101')
        self._scene = scene
        self._seed = int(self.declare_parameter('seed', 0).value)
        self._blank = bool(self.declare_parameter('blank_cameras', False).value)
        camera_hz = float(self.declare_parameter('camera_hz', 30.0).value)
        joint_state_hz = float(self.declare_parameter('joint_state_hz', 100.0).value)
        refuse_unknown(self)
        self._episode = -1
        self._cameras_on = True
        self._succeeded = False
        self._images = {
            camera: self.create_publisher(Image, f'/camera/{camera}/image_raw', 5)
            for camera in CAMERAS}
        self._joint_states = self.create_publisher(JointState, '/joint_states', 10)
        self._task = self.create_publisher(DiagnosticStatus, '~/task', 10)
        self._scene_state = self.create_publisher(Float64MultiArray, '~/scene_state', 10)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self.create_subscription(Float64MultiArray, '~/joint_targets', self._take_targets, 1)
        self.create_service(Trigger, '~/reset', self._reset)
        self.create_service(SetBool, '~/stream_cameras', self._stream_cameras)
        scene.reset(self._seed)
        self._cameras = Cameras(self._publish_image)
        now_ns = time.monotonic_ns()
        self._pace = Pace(now_ns)
        self._joint_beat = Beat(joint_state_hz, now_ns)
        self._camera_beat = Beat(camera_hz, now_ns)
        self._task_beat = Beat(_TASK_HZ, now_ns)
        self._diagnostics_beat = Beat(_DIAGNOSTICS_HZ, now_ns)

    def live(self, now_ns: int) -> None:
        """Do everything that is due at `now_ns` (steady clock)."""
        if self._joint_beat.strikes(now_ns):
            self._follow()
            self._publish_joints()
        if self._camera_beat.strikes(now_ns):
            self._follow()
            if self._cameras_on:
                self._cameras.capture(
                    Snapshot.of(self._scene), self.get_clock().now().to_msg())
        if self._task_beat.strikes(now_ns):
            self._publish_task()
        if self._diagnostics_beat.strikes(now_ns):
            self._publish_diagnostics(now_ns)

    @property
    def next_due_ns(self) -> int:
        """When there is something to do again (steady clock)."""
        return min(self._joint_beat.due_ns, self._camera_beat.due_ns)

    def close(self) -> None:
        """Stop the cameras."""
        self._cameras.close()

    def _follow(self) -> None:
        """Bring the physics up to now."""
        self._scene.advance(self._pace.advance_s(time.monotonic_ns()))
        self._succeeded = self._succeeded or self._scene.success()

    def _take_targets(self, message: Float64MultiArray) -> None:
        self._follow()
        try:
            self._scene.command(np.frombuffer(message.data))
        except ValueError as error:
            self.get_logger().warn(f'joint targets dropped: {error}', throttle_duration_sec=1.0)

    def _reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._follow()
        self._episode += 1
        self._succeeded = False
        seed = self._seed + self._episode
        self._scene.reset(seed)
        self._publish_task()
        response.success = True
        response.message = f'episode {self._episode}, seed {seed}'
        return response

    def _stream_cameras(self, request: SetBool.Request, response: SetBool.Response
                        ) -> SetBool.Response:
        self._cameras_on = request.data
        response.success = True
        response.message = 'cameras on' if request.data else 'cameras off'
        return response

    def _publish_joints(self) -> None:
        message = JointState(name=list(JOINT_NAMES))
        message.header.stamp = self.get_clock().now().to_msg()
        message.position = self._scene.joint_positions_rad().astype(float).tolist()
        message.velocity = self._scene.joint_velocities_rad_s().astype(float).tolist()
        self._joint_states.publish(message)

    def _publish_image(self, camera: str, pixels: NDArray[np.uint8], stamp: Any) -> None:
        """Called by the cameras' thread."""
        if self._blank:
            pixels = np.zeros_like(pixels)
        message = Image(height=IMAGE_SIZE, width=IMAGE_SIZE, encoding='rgb8', step=3 * IMAGE_SIZE)
        message.header.stamp = stamp
        message.header.frame_id = f'{camera}_camera'
        data = array.array('B')
        data.frombytes(pixels.tobytes())
        message.data = data
        self._images[camera].publish(message)

    def _publish_task(self) -> None:
        message = DiagnosticStatus(name=TASK_STATUS, hardware_id='so101')
        message.message = 'done' if self._succeeded else 'under way'
        message.values = _values(
            episode=self._episode, seed=self._seed + self._episode,
            success=int(self._succeeded), simulated_s=f'{self._scene.time_s:.3f}',
            slipped_s=f'{self._pace.slipped_s:.3f}')
        self._task.publish(message)
        self._scene_state.publish(
            Float64MultiArray(data=Snapshot.of(self._scene).to_list()))

    def _publish_diagnostics(self, now_ns: int) -> None:
        factor = self._pace.real_time_factor(now_ns)
        status = DiagnosticStatus(name='so101: simulation', hardware_id='so101')
        too_slow = factor < _SLIP_WARN
        status.level = DiagnosticStatus.WARN if too_slow else DiagnosticStatus.OK
        status.message = ('the machine is too slow: simulated time slips' if too_slow
                          else 'in real time')
        status.values = _values(
            real_time_factor=f'{factor:.4f}', slipped_s=f'{self._pace.slipped_s:.3f}',
            cameras='on' if self._cameras_on else 'off', dropped_frames=self._cameras.dropped)
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def _values(**values: object) -> list[KeyValue]:
    return [KeyValue(key=key, value=str(value)) for key, value in values.items()]


def main() -> int:
    """Run the robot until it is told to stop."""
    interrupt_once(*endings())
    # The context outlives the loop.
    robot = None
    try:
        start_ros()
        executor = SingleThreadedExecutor()
        robot = SimulatedRobot(Scene())
        check_parameter_files(robot)
        executor.add_node(robot)
        while True:
            robot.live(time.monotonic_ns())
            wait_s = (robot.next_due_ns - time.monotonic_ns()) / NS_PER_S
            executor.spin_once(timeout_sec=max(wait_s, 0.0))
    except InputError as error:
        print(f'so101: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    finally:
        if robot is not None:
            robot.close()
        rclpy.try_shutdown()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
