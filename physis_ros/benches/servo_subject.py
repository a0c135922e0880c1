"""One beat under test, in a process of its own: prints its wake-ups as JSON.

    python -m physis_ros.benches.servo_subject KIND HZ SECONDS --ros-args ...

KIND is `servo` (servo_node as it is), or `timer` (a plain rclpy timer that publishes as much).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import Float64MultiArray

from physis_core.units import NS_PER_S
from physis_ros.beat import SteadyBeat
from physis_ros.servo_node import ServoNode, make_punctual, run, spinning

_WARM_UP_S = 1.0


def measure_servo(hz: float, seconds: float) -> dict[str, object]:
    """The servo loop of servo_node, playing whatever the ring has."""
    node = ServoNode()
    ending = threading.Event()
    with spinning(node):
        make_punctual(node)
        # The first beats load code and memory; they are not kept.
        threading.Timer(_WARM_UP_S, lambda: setattr(
            node, 'beat', SteadyBeat(hz, kept_beats=round(hz * seconds) + 1))).start()
        threading.Timer(_WARM_UP_S + seconds, ending.set).start()
        run(node, ending)
        player = node.player
        return {
            'woken_ns': node.beat.woken_ns().tolist(), 'missed': int(node.beat.missed),
            'fifo': node.real_time.fifo, 'refusals': node.real_time.refusals,
            'played': 0 if player is None else player.played}


def measure_timer(hz: float, seconds: float) -> dict[str, object]:
    """A timer of an executor that publishes a message at each call."""
    node = Node('timer')
    publisher = node.create_publisher(Float64MultiArray, '/bench/timer', 1)
    woken_ns: list[int] = []

    def beat() -> None:
        woken_ns.append(time.monotonic_ns())
        publisher.publish(Float64MultiArray(data=array('d', bytes(48))))

    node.create_timer(1.0 / hz, beat)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    begin_ns = time.monotonic_ns() + round(_WARM_UP_S * NS_PER_S)
    end_ns = begin_ns + round(seconds * NS_PER_S)
    while time.monotonic_ns() < end_ns:
        executor.spin_once(timeout_sec=0.1)
    kept = [woken for woken in woken_ns if woken >= begin_ns]
    return {'woken_ns': kept, 'missed': max(round(hz * seconds) - len(kept), 0), 'fifo': False,
            'refusals': [], 'played': len(kept)}


def main() -> int:
    """Measure and print."""
    kind, hz, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    rclpy.init()
    try:
        result = (measure_servo if kind == 'servo' else measure_timer)(hz, seconds)
    finally:
        rclpy.try_shutdown()
    print(json.dumps(result))
    return 0


if __name__ == '__main__':
    sys.exit(main())
