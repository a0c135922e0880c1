"""`servo_node`: plays control points from the ring at a steady beat, in a process of its own.

The main thread is the servo loop and nothing else; ROS callbacks run in a second thread that
sleeps unless a service is called or the once-a-second diagnostics are due.
"""

from __future__ import annotations

import signal
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger

from physis_core.delivery.chunk import Floats
from physis_core.delivery.ring import RingReader, ServoState
from physis_core.delivery.servo import ServoPlayer
from physis_core.delivery.servo_loop import ServoLoop
from physis_core.errors import PhysisError
from physis_ros.beat import SteadyBeat
from physis_ros.ending import endings, ignore_endings
from physis_ros.parameters import Setting, Settings
from physis_ros.real_time import RealTime, become_real_time
from physis_ros.ring_name import ring_name
from physis_ros.rivals import RivalWatch
from physis_ros.servo_settings import SERVO_SETTINGS, check_limits, joint_limits
from physis_ros.starting import check_parameter_files, start_ros
from physis_ros.status import component, status_of

# How often a missing ring is looked for, and a present one's writer is looked after.
_LOOK_S = 0.1
# A receiver that asks for a deadline is told when commands stay away for so long.
_SILENCE_S = 0.1
# Time for the last status to reach whoever listens.
_LAST_WORD_S = 0.5
# Time to come to rest when the process is told to end.
_REST_S = 1.0


class ServoNode(Node):
    """The ROS side: parameters, publisher, service, diagnostics.

    The loop's thread calls `publish` and sets `loop`; the executor's thread reads what is reported.
    """

    def __init__(self) -> None:
        super().__init__('servo_node')
        self.settings = Settings(self, SERVO_SETTINGS)
        self.settings.check()
        check_limits(self.settings)
        self.settings.refuse_bad_changes(_fixed)
        self.rate_hz: float = self.settings['servo_hz']
        self.ring = ring_name(self.settings['ring'], self.get_namespace())
        self.beat = SteadyBeat(self.rate_hz)
        self.player: ServoPlayer | None = None
        self.loop: ServoLoop | None = None
        self.real_time = RealTime()
        # An old command must not arrive after a newer one was missed.
        self._commands = self.create_publisher(
            Float64MultiArray, self.settings['commands_topic'],
            QoSProfile(depth=1, deadline=Duration(seconds=_SILENCE_S),
                       lifespan=Duration(seconds=_SILENCE_S)))
        self._rivals = RivalWatch(self, self._commands.topic_name)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._missed_before = 0
        self._joints: tuple[str, ...] = ()
        self._fault = ''
        self.create_service(Trigger, '~/stop_request', self._stop_request)
        self.create_timer(1.0, self._publish_diagnostics,
                          clock=Clock(clock_type=ClockType.STEADY_TIME))

    def publish(self, position: Floats) -> None:
        """Send one command."""
        self._commands.publish(Float64MultiArray(data=array('d', position.tobytes())))

    def open_ring(self) -> RingReader | None:
        """The ring, if it is there and its writer lives."""
        ring = RingReader.open(self.ring)
        if ring is None:
            return None
        if not ring.writer_alive():
            ring.close()  # what a killed writer left; closing removes it
            return None
        if self.player is None or self._joints != ring.format.joints:
            self._joints = ring.format.joints
            self.player = ServoPlayer(
                joint_limits(self.settings, ring.format.joints),
                self.settings['splice_ms'] * 1e-3, self.settings['restart_tolerance'],
                1.0 / self.rate_hz)
        self.loop = ServoLoop(
            ring, self.player, self.publish, self.rate_hz, self.real_time.fifo)
        self.get_logger().info(
            f'playing from ring `{self.ring}` at {self.rate_hz:g} Hz')
        return ring

    def _stop_request(self, request: Trigger.Request, response: Trigger.Response
                      ) -> Trigger.Response:
        """Come to rest and stay there until wam_node is reset.  Not an emergency stop."""
        response.success = self.loop is not None
        response.message = 'there is nothing to stop: no ring'
        if self.loop is not None:
            self.loop.stop_request = 'stop requested at servo_node'
            response.message = 'stopped; reset wam_node to go on'
        return response

    def _publish_diagnostics(self) -> None:
        self._rivals.look()
        message = DiagnosticArray(status=[self._status()])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def give_up(self, reason: str) -> None:
        """Say why this node ends, in the log and, as the last thing, on /diagnostics."""
        self._fault = reason
        self.get_logger().error(reason)
        self._publish_diagnostics()
        self._diagnostics.wait_for_all_acked(Duration(seconds=_LAST_WORD_S))

    def _status(self) -> DiagnosticStatus:
        quality, player = self.beat.quality(), self.player
        state = ServoState.IDLE if player is None else player.state
        missed, self._missed_before = (
            self.beat.missed - self._missed_before, self.beat.missed)
        share = missed / self.rate_hz
        level, text = DiagnosticStatus.OK, state.name.lower()
        if self._fault:
            level, text = DiagnosticStatus.ERROR, f'ended: {self._fault}'
        elif player is None:
            level, text = DiagnosticStatus.WARN, f'waiting for ring `{self.ring}` of wam_node'
        elif state is ServoState.STOPPED:
            level, text = DiagnosticStatus.ERROR, f'stopped: {player.stop_reason}'
        elif share > self.settings['error.missed_ratio']:
            level, text = DiagnosticStatus.ERROR, f'{share:.1%} of the ticks missed'
        elif share > self.settings['warn.missed_ratio']:
            level, text = DiagnosticStatus.WARN, f'{share:.1%} of the ticks missed'
        elif state is ServoState.HOLDING:
            level, text = DiagnosticStatus.WARN, 'holding: nothing valid to play'
        values = {
            'asked for [Hz]': f'{self.rate_hz:g}',
            'mean period [ms]': f'{quality.period_ms:.3f}',
            'wake-up after deadline p50 [ms]': f'{quality.late_p50_ms:.3f}',
            'wake-up after deadline p99 [ms]': f'{quality.late_p99_ms:.3f}',
            'wake-up after deadline max [ms]': f'{quality.late_max_ms:.3f}',
            'ticks missed [1]': str(self.beat.missed),
            'control points played [1]': str(player.played if player else 0),
            'underruns [1]': str(player.underruns if player else 0),
            'scheduling': 'SCHED_FIFO' if self.real_time.fifo else 'normal',
            'not permitted': '; '.join(self.real_time.refusals)}
        return status_of(component(self), 'servo', level, text, values)


def _fixed(setting: Setting) -> str:
    """Why a parameter cannot be changed now: the loop was made from it."""
    if setting.fixed_from == 'never':
        return ''
    return f'parameter `{setting.name}` counts from the start of servo_node on: start it anew'


def run(node: ServoNode, ending: threading.Event) -> None:
    """Play until told to end; then come to rest."""
    ring: RingReader | None = None
    looks = max(round(_LOOK_S * node.rate_hz), 1)
    ticks, awaited = 0, False
    while not ending.is_set():
        if ring is None:
            ring = node.open_ring()
            if ring is None:
                if not awaited:
                    node.get_logger().info(
                        f'waiting for ring `{node.ring}` of wam_node: it is there as soon as '
                        'wam_node is configured, with the same `ring`, namespace and ROS domain')
                    awaited = True
                ending.wait(_LOOK_S)
            node.beat.restart()
            continue
        _tick(node)
        ticks += 1
        # A writer that is gone wrote its last chunk: it is played, then held; a new writer's ring
        # is taken as soon as it is there.
        if ticks % looks == 0 and not ring.writer_alive():
            fresh = node.open_ring()
            if fresh is not None:
                ring.close()
                ring = fresh
    if ring is not None:
        _come_to_rest(node)
        ring.close()


def _tick(node: ServoNode) -> None:
    loop = node.loop
    assert loop is not None  # set with the ring
    due_ns = node.beat.wait()
    loop.missed = node.beat.missed
    loop.tick(due_ns)


def _come_to_rest(node: ServoNode) -> None:
    if node.loop is not None:
        node.loop.stop_request = 'servo_node is ending'
        for _ in range(round(_REST_S * node.rate_hz)):
            _tick(node)
            if node.loop.at_rest:
                return


@contextmanager
def spinning(node: Node) -> Iterator[None]:
    """Run the callbacks of a node in another thread."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=_spin, args=(executor,), name='ros', daemon=True)
    thread.start()
    try:
        yield
    finally:
        # In this order: the other thread sees its context end, and only then goes what it waits on.
        rclpy.try_shutdown()
        thread.join()
        executor.shutdown()
        node.destroy_node()


def make_punctual(node: ServoNode) -> None:
    """Make the calling thread as punctual as the node's parameters ask and the system permits."""
    settings = node.settings
    node.real_time = become_real_time(
        settings['real_time.priority'], settings['real_time.cpus'],
        settings['real_time.lock_memory'])
    for refusal in node.real_time.refusals:
        node.get_logger().warning(refusal)


def main() -> int:
    """Run the node until it is told to stop."""
    ending = threading.Event()
    # Own handlers: those of rclpy would end the context before the joints are at rest.
    try:
        start_ros()
        for number in endings():
            signal.signal(number, lambda *_: ending.set())
        node = ServoNode()
        check_parameter_files(node)
    except PhysisError as error:
        print(f'servo_node: {error}', file=sys.stderr)
        rclpy.try_shutdown()
        return 1
    with spinning(node):
        make_punctual(node)
        try:
            run(node, ending)
        except PhysisError as error:
            node.give_up(str(error))
            return 1
    ignore_endings()
    return 0


def _spin(executor: SingleThreadedExecutor) -> None:
    try:
        executor.spin()
    except ExternalShutdownException:
        return


if __name__ == '__main__':
    sys.exit(main())
