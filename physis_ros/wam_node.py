"""`wam_node`: a world action model between sensor topics and a robot's controller.

A managed (lifecycle) node.  Configuring starts the engine's worker processes, activating opens the
stream.  Threads: the executor thread runs every callback, the delivery thread (chunk_delivery.py)
publishes chunks.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import rclpy
import torch
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile
from rclpy.timer import Timer
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.delivery.buffer import OutputBuffer
from physis_core.delivery.chunk import Floats, PlannedChunk
from physis_core.delivery.handover import make_handover
from physis_core.delivery.ring import RingFormat, RingWriter
from physis_core.errors import PhysisError, StreamError
from physis_core.observability.stream_account import StreamAccount
from physis_core.runtime.engine import Engine, EngineOptions, StreamOptions
from physis_core.units import NS_PER_MS, NS_PER_S
from physis_ros.chunk_delivery import ChunkDelivery
from physis_ros.chunk_messages import action_chunk, joint_trajectory, stop_trajectory
from physis_ros.diagnostics import Thresholds, statuses
from physis_ros.ending import interrupt_once
from physis_ros.ingest.observation import Observation
from physis_ros.ingest.subscriptions import Ingest
from physis_ros.msg import ActionChunk, StreamReport
from physis_ros.policy import PREFIX, Policy, make_policy
from physis_ros.replay.recording import SessionRecording
from physis_ros.ring_name import ring_name
from physis_ros.stage_status import stage_status
from physis_ros.steady_time import SteadyTime
from physis_ros.stream_report import StreamStatus, stream_report
from physis_ros.timed_publisher import TimedPublisher
from physis_ros.wam_settings import declare_wam_settings

_WATCH_HZ = 50.0
_DIAGNOSTICS_HZ = 1.0
# A lost worker is replaced within seconds; a reset waits that long for the stream to come back.
_REOPEN_S = 10.0
_REOPEN_RETRY_S = 0.05

EngineFactory = Callable[[Policy], Engine]


def start_engine(policy: Policy) -> Engine:
    """The engine of a policy, for one stream."""
    return Engine(policy.spec, policy.plan, options=EngineOptions(compute=policy.compute))


class WamNode(LifecycleNode):
    """Observations in, action chunks out.

    All fields belong to the executor thread, except `_fault`, which the delivery thread sets when
    the stream ends by itself.
    """

    def __init__(self, start: EngineFactory = start_engine) -> None:
        super().__init__('wam_node')
        self._start_engine = start
        self._settings = declare_wam_settings(self)
        self._steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._state = 'unconfigured'
        self._policy: Policy | None = None
        self._engine: Engine | None = None
        self._ring: RingWriter | None = None
        self._ingest: Ingest | None = None
        self._delivery: ChunkDelivery | None = None
        self._timed: TimedPublisher[JointTrajectory] | None = None
        self._times: SteadyTime | None = None
        self._recording: SessionRecording | None = None
        self._stream_timers: list[Timer] = []
        self._paused_by_user = False
        self._unfit: list[str] = []
        self._fault = ''
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self.create_timer(1.0 / _DIAGNOSTICS_HZ, self._publish_diagnostics,
                          clock=self._steady_clock)
        self.create_service(Trigger, '~/reset', self._reset)
        self.create_service(SetBool, '~/pause', self._pause)
        self.create_service(Trigger, '~/stop_request', self._stop_request)

    @property
    def autostart(self) -> bool:
        """Whether to configure and activate without being asked to."""
        return bool(self._settings['autostart'])

    # -- transitions ----------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Check parameters, start the engine, create the ring, publishers and subscriptions."""
        try:
            self._settings.check()
            self._configure()
        except PhysisError as error:
            # An exception would only show as the state ErrorProcessing, without a word.
            self.get_logger().error(f'not configured: {error}')
            self._release()
            return TransitionCallbackReturn.FAILURE
        self._state = 'inactive'
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the stream."""
        super().on_activate(state)
        self._fault = ''
        self._paused_by_user = False
        try:
            self._open_stream()
        except PhysisError as error:
            self.get_logger().error(f'not activated: {error}')
            self._close_stream()
            super().on_deactivate(state)
            return TransitionCallbackReturn.FAILURE
        self._state = 'active'
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the stream; the servo comes to rest and is silent."""
        self._close_stream()
        self._state = 'inactive'
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop the engine and let go of everything."""
        self._release()
        self._state = 'unconfigured'
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """The same, from any state."""
        self.close()
        self._state = 'finalized'
        return TransitionCallbackReturn.SUCCESS

    def close(self) -> None:
        """Stop the producer first, then let the servo rest, then let go of everything."""
        self._close_stream()
        self._release()

    def _configure(self) -> None:
        settings = self._settings
        self._policy = policy = make_policy(settings)
        self._times = SteadyTime(self.get_clock(), settings['time_jump_ms'])
        self._ring = RingWriter(
            ring_name(settings['ring'], self.get_namespace()),
            RingFormat(policy.joints, policy.points))
        self._engine = self._start_engine(policy)
        # A chunk that was not delivered within its horizon is of no use to anybody; a receiver
        # that asks for a deadline is told by the middleware when chunks stay away.
        chunk_quality = QoSProfile(
            depth=10, deadline=Duration(seconds=2e-3 * settings['period_ms']),
            lifespan=Duration(nanoseconds=policy.points * policy.control_period_ns))
        self._chunks = self.create_lifecycle_publisher(
            ActionChunk, '~/action_chunk', chunk_quality)
        self._reports = self.create_lifecycle_publisher(
            StreamReport, '~/stream_report', QoSProfile(depth=10))
        self._trajectories = None
        if settings['trajectory.topic']:
            self._trajectories = self.create_lifecycle_publisher(
                JointTrajectory, settings['trajectory.topic'], chunk_quality)
            self._timed = TimedPublisher(
                self._trajectories.publish, round(settings['trajectory.early_ms'] * NS_PER_MS))
        self._ingest = Ingest(self, settings, policy, self._times, self._observe)
        self._stream_timers = [
            self.create_timer(1.0 / _WATCH_HZ, self._watch, clock=self._steady_clock),
            self.create_timer(1.0 / settings['report_hz'], self._publish_report,
                              clock=self._steady_clock)]

    def _release(self) -> None:
        for timer in self._stream_timers:
            self.destroy_timer(timer)
        self._stream_timers.clear()
        if self._timed is not None:
            self._timed.close()
        if self._ingest is not None:
            self._ingest.close()
            for publisher in (self._chunks, self._reports, self._trajectories):
                if publisher is not None:
                    self.destroy_lifecycle_publisher(publisher)
        if self._engine is not None:
            self._engine.close()
        if self._ring is not None:
            self._ring.close()
        self._policy = self._engine = self._ring = self._ingest = self._times = None
        self._timed = None

    # -- the stream -----------------------------------------------------------------------------

    def _open_stream(self) -> None:
        settings = self._settings
        assert self._engine and self._policy and self._ring and self._ingest and self._times
        period_ns = round(settings['period_ms'] * NS_PER_MS)
        self._recording = self._new_recording(self._policy)
        stream = self._engine.open_stream(StreamOptions(
            seed=settings['seed'], period_ns=period_ns,
            lead_ns=round(settings['lead_ms'] * NS_PER_MS)))
        handover = make_handover(
            settings['handover.strategy'], decay=settings['handover.decay'],
            blend_ns=round(settings['handover.blend_ms'] * NS_PER_MS),
            prefix_points=settings['handover.prefix_points'])
        self._delivery = ChunkDelivery(
            stream, self._policy,
            OutputBuffer(handover, period_ns, round(settings['max_age_ms'] * NS_PER_MS)),
            self._ring, StreamAccount(settings['window_s'], settings['warm_up_chunks']),
            self._measured, self._publish_chunk, self._fail)
        self._delivery.start()
        self._times.jump_ns()
        self._ingest.clear()
        self._ingest.active = True
        self._unfit = []
        self._apply_pause()

    def _close_stream(self) -> None:
        if self._ingest is not None:
            self._ingest.active = False
        if self._delivery is not None:
            self._delivery.close()
        self._delivery = None
        if self._recording is not None:
            self._recording.close()
        self._recording = None
        self._forget_trajectories()

    def _new_recording(self, policy: Policy) -> SessionRecording | None:
        settings = self._settings
        if not settings['record']:
            return None
        recording = SessionRecording(
            Path(settings['record']),
            {camera: settings[f'cameras.{camera}.topic'] for camera in settings['camera_names']},
            settings['joints.input'], settings['joints.topic'], policy.joints)
        self.get_logger().info(f'recording to {recording.folder}')
        return recording

    def _observe(self, observation: Observation) -> None:
        if self._delivery is None or self._fault:
            return
        if self._recording is not None and self._times is not None:
            self._recording.observation(
                observation.arrays, self._times.stamp(observation.capture_ns),
                self._times.stamp(time.monotonic_ns()))
        try:
            self._delivery.stream.observe(
                {**observation.arrays, **self._prefix(self._delivery)}, observation.capture_ns)
        except StreamError as error:
            self._fail(str(error))

    def _prefix(self, delivery: ChunkDelivery) -> dict[str, np.ndarray]:
        """What was promised for the begin of the next chunk, for a model that wants to know."""
        assert self._policy is not None
        if not self._policy.prefix_points:
            return {}
        lead_ns = round(self._settings['lead_ms'] * NS_PER_MS)
        promised = delivery.promised(self._policy.prefix_points, lead_ns, time.monotonic_ns())
        return {PREFIX: promised.astype(np.float32)}

    def _measured(self) -> Floats:
        assert self._ingest is not None
        return self._ingest.joints.positions()

    def _fail(self, reason: str) -> None:
        """Latch a fault (either thread)."""
        if self._fault:
            return
        self._fault = reason
        self.get_logger().error(f'stopped: {reason}; call ~/reset to go on')
        if self._delivery is None:
            return
        rest = self._delivery.stop(reason, self._settings['trajectory.deceleration'],
                                   round(self._settings['trajectory.early_ms'] * NS_PER_MS))
        self._forget_trajectories()
        if self._timed is not None and rest is not None:
            # The producer is stopped and nothing waits: this is the last thing that is said.
            assert self._policy is not None
            self._timed.give(stop_trajectory(rest, self._policy.joints), rest.due_ns)

    def _forget_trajectories(self) -> None:
        """Trajectories that wait for their time are not sent."""
        if self._timed is not None:
            self._timed.clear()

    def _apply_pause(self) -> None:
        if self._delivery is not None:
            self._delivery.pause(bool(self._pause_reason() or self._fault))

    def _pause_reason(self) -> str:
        reasons = ['by ~/pause'] if self._paused_by_user else []
        if self._unfit:
            reasons.append(f'no fresh input from {", ".join(self._unfit)}')
        return ' and '.join(reasons)

    # -- watching -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look after sources, clocks and servo, many times a second."""
        if self._delivery is None or self._ingest is None or self._times is None:
            return
        now_ns = time.monotonic_ns()
        jump_ns = self._times.jump_ns()
        if jump_ns:
            self.get_logger().warning(f'ROS time jumped by {jump_ns / NS_PER_S:+.3f} s: new epoch')
            with suppress(StreamError):  # an ended stream waits for ~/reset
                self._begin_epoch()
        self._delivery.look_at_servo(now_ns)
        unfit = [source.name for source in self._ingest.assembler.unfit(now_ns)]
        if unfit != self._unfit:
            self._unfit = unfit
            if unfit:
                self.get_logger().warning(f'no fresh input from {", ".join(unfit)}: paused')
            self._apply_pause()

    def _begin_epoch(self) -> None:
        """Drop everything in flight and everything seen."""
        assert self._ingest is not None
        if self._delivery is None:
            return
        self._delivery.reset()
        self._forget_trajectories()
        self._ingest.clear()

    # -- services -------------------------------------------------------------------------------

    def _reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Begin a new epoch; lifts a stop."""
        response.success = False
        if self._delivery is None:
            response.message = f'the node is {self._state}; activate it first'
            return response
        try:
            if self._delivery.stream.ended is not None:
                self._reopen()
            else:
                self._begin_epoch()
        except PhysisError as error:
            response.message = f'not reset: {error}'
            return response
        self._fault = ''
        self._apply_pause()
        response.success = True
        response.message = f'epoch {self._delivery.epoch}'
        return response

    def _reopen(self) -> None:
        """A new stream in place of one that has ended."""
        self._close_stream()
        until_ns = time.monotonic_ns() + round(_REOPEN_S * NS_PER_S)
        while True:
            try:
                self._open_stream()
                return
            except PhysisError:
                if time.monotonic_ns() > until_ns:
                    raise
                time.sleep(_REOPEN_RETRY_S)

    def _pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        """Pause or go on making chunks; what is planned is played to its end."""
        self._paused_by_user = request.data
        self._apply_pause()
        response.success = True
        response.message = 'paused' if request.data else 'running'
        return response

    def _stop_request(self, request: Trigger.Request, response: Trigger.Response
                      ) -> Trigger.Response:
        """Come to rest and stay there until ~/reset.  Not an emergency stop."""
        self._fail('stop requested')
        response.success = True
        response.message = 'stopped; call ~/reset to go on'
        return response

    # -- publishing -----------------------------------------------------------------------------

    def _publish_chunk(self, chunk: PlannedChunk) -> None:
        """Publish a delivered chunk (delivery thread)."""
        assert self._policy is not None and self._times is not None
        joints = self._policy.joints
        if self._recording is not None:
            self._recording.chunk(chunk)
        self._chunks.publish(
            action_chunk(chunk, self._settings['stream_id'], joints, self._times))
        if self._timed is not None:
            self._timed.give(joint_trajectory(
                chunk, joints, self._times, self._settings['trajectory.end_at_rest']),
                chunk.due_ns)

    def _status(self) -> StreamStatus | None:
        delivery, ingest = self._delivery, self._ingest
        if delivery is None or ingest is None:
            return None
        now_ns = time.monotonic_ns()
        feedback = delivery.look_at_servo(now_ns)
        numbers, counts, depth = delivery.numbers(now_ns)
        return StreamStatus(
            now_ns=now_ns, epoch=delivery.epoch,
            sources=tuple(source.health(now_ns) for source in ingest.assembler.sources),
            numbers=numbers, counts=counts, depth=depth, in_flight=delivery.stream.in_flight,
            feedback=feedback, underruns=delivery.underruns(feedback) if feedback else 0,
            paused=self._pause_reason(), fault=self._fault)

    def _publish_report(self) -> None:
        status = self._status()
        if status is not None and self._times is not None:
            self._reports.publish(stream_report(
                status, self._settings['stream_id'], self._settings['window_s'], self._times))

    def _publish_diagnostics(self) -> None:
        status = self._status()
        message = DiagnosticArray(status=statuses(
            self.get_name(), self._state, status, self._thresholds() if status else None))
        if self._engine is not None:
            message.status.append(stage_status(self.get_name(), self._engine.stage_logs()))
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _thresholds(self) -> Thresholds:
        settings = self._settings
        return Thresholds(
            warn_age_s=settings['warn.age_ms'] / 1e3, error_age_s=settings['error.age_ms'] / 1e3,
            warn_on_time=settings['warn.on_time_ratio'],
            error_on_time=settings['error.on_time_ratio'],
            warn_rate=settings['warn.rate_share'], error_rate=settings['error.rate_share'],
            chunk_hz=1e3 / settings['period_ms'],
            sensor_hz={camera: settings[f'cameras.{camera}.expected_hz']
                       for camera in settings['camera_names']},
            lead_s=settings['lead_ms'] / 1e3)


def main() -> int:
    """Run the node until it is told to stop."""
    torch.set_num_threads(1)  # images are small; the workers need the cores
    interrupt_once(signal.SIGINT)
    rclpy.init()
    node = WamNode()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    failed = False
    try:
        if node.autostart:
            failed = (node.trigger_configure() is not TransitionCallbackReturn.SUCCESS
                      or node.trigger_activate() is not TransitionCallbackReturn.SUCCESS)
        if not failed:
            executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.close()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    return int(failed)


if __name__ == '__main__':
    sys.exit(main())
