"""Sensors for benches: cameras and joint states at a steady beat, and how many were sent."""

from __future__ import annotations

import array
import time

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState

from physis_core.units import NS_PER_S

STATUS = 'sensors: sent'


class Sensors(Node):
    """Publishes until it is told to stop; the loop is its own, so that the beat is steady."""

    def __init__(self) -> None:
        super().__init__('sensors')
        cameras = self.declare_parameter('cameras', ['front']).value or []
        width = int(self.declare_parameter('width', 640).value)
        height = int(self.declare_parameter('height', 480).value)
        self._camera_ns = round(NS_PER_S / self.declare_parameter('camera_hz', 30.0).value)
        self._joint_ns = round(NS_PER_S / self.declare_parameter('joint_hz', 500.0).value)
        self._joints = list(self.declare_parameter('joints', ['joint']).value)
        self._cameras = {name: self.create_publisher(
            Image, f'/camera/{name}/image_raw', qos_profile_sensor_data) for name in cameras}
        self._joint_states = self.create_publisher(JointState, '/joint_states', 10)
        self._sent = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._counts = dict.fromkeys((*cameras, 'joints'), 0)
        noise = np.random.default_rng(0).integers(0, 255, height * width * 3, np.uint8)
        self._image = Image(height=height, width=width, encoding='rgb8', step=3 * width)
        self._pixels = array.array('B', noise.tobytes())

    def run(self) -> None:
        """Publish until the context ends."""
        now_ns = time.monotonic_ns()
        camera_due_ns = joint_due_ns = report_due_ns = now_ns
        while rclpy.ok():
            now_ns = time.monotonic_ns()
            if now_ns >= joint_due_ns:
                joint_due_ns += self._joint_ns
                self._publish_joints()
            if now_ns >= camera_due_ns:
                camera_due_ns += self._camera_ns
                self._publish_images()
            if now_ns >= report_due_ns:
                report_due_ns += NS_PER_S // 4
                self._report()
            wait_ns = min(camera_due_ns, joint_due_ns, report_due_ns) - time.monotonic_ns()
            time.sleep(max(wait_ns, 0) / NS_PER_S)

    def _publish_joints(self) -> None:
        message = JointState(name=self._joints, position=[0.0] * len(self._joints))
        message.header.stamp = self.get_clock().now().to_msg()
        self._joint_states.publish(message)
        self._counts['joints'] += 1

    def _publish_images(self) -> None:
        for name, publisher in self._cameras.items():
            # Each frame differs from the one before, as a live camera's does.
            self._pixels[self._counts[name] % len(self._pixels)] ^= 0xFF
            self._image.data = self._pixels
            self._image.header.stamp = self.get_clock().now().to_msg()
            publisher.publish(self._image)
            self._counts[name] += 1

    def _report(self) -> None:
        message = DiagnosticArray(status=[DiagnosticStatus(
            name=STATUS, hardware_id='sensors', level=DiagnosticStatus.OK,
            values=[KeyValue(key=name, value=str(count))
                    for name, count in self._counts.items()])])
        message.header.stamp = self.get_clock().now().to_msg()
        self._sent.publish(message)


def main() -> int:
    """Publish until told to stop."""
    rclpy.init()
    try:
        Sensors().run()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except Exception:
        if rclpy.ok():  # else: it was told to stop while it published
            raise
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
