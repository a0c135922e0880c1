"""`wam_node`: a world action model between sensor topics and a robot's controller.

A managed (lifecycle) node.  Configuring starts the engine's worker processes, activating opens the
stream.  Threads: the executor thread runs every callback, the delivery thread (chunk_delivery.py)
publishes chunks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import rclpy
import torch
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import (
    LifecycleNode,
    LifecyclePublisher,
    LifecycleState,
    TransitionCallbackReturn,
)
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.timer import Timer
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.delivery.buffer import OutputBuffer
from physis_core.delivery.chunk import Floats, PlannedChunk
from physis_core.delivery.handover import make_handover
from physis_core.delivery.ring import RingFormat, RingWriter
from physis_core.delivery.timeline import Timeline
from physis_core.errors import InputError, PhysisError, StreamError
from physis_core.observability.stream_account import StreamAccount
from physis_core.runtime.engine import Engine, EngineOptions, StreamOptions
from physis_core.units import NS_PER_MS, NS_PER_S
from physis_ros.chunk_delivery import ChunkDelivery
from physis_ros.chunk_messages import (
    action_chunk,
    joint_trajectory,
    stop_trajectory,
    way_to_rest,
)
from physis_ros.device_status import DeviceWatch
from physis_ros.diagnostics import Thresholds, statuses
from physis_ros.ending import Ending, endings, ignore_endings
from physis_ros.ingest.observation import Observation
from physis_ros.ingest.subscriptions import Ingest
from physis_ros.msg import ActionChunk, StreamReport
from physis_ros.parameters import Setting
from physis_ros.pause_log import PauseLog
from physis_ros.pipeline_status import PipelineWatch
from physis_ros.policy import PREFIX, Policy, crowded, idle_workers, make_policy
from physis_ros.replay.recording import SessionRecording, outlets, recorded_encoding
from physis_ros.ring_name import ring_name
from physis_ros.rivals import RivalWatch
from physis_ros.stage_status import stage_status
from physis_ros.starting import check_parameter_files, start_ros
from physis_ros.status import Limit, component
from physis_ros.steady_time import SteadyTime
from physis_ros.stream_report import StreamStatus, stream_report
from physis_ros.timed_publisher import TimedPublisher
from physis_ros.wam_settings import declare_wam_settings

_WATCH_HZ = 50.0
_DIAGNOSTICS_HZ = 1.0
# A lost worker is replaced within seconds; a reset waits that long for the stream to come back.
_REOPEN_S = 10.0
_REOPEN_RETRY_S = 0.05
# How long an idle node takes to see that it is told to end.
_LOOK_S = 0.1
_INSTRUCTION = 'instruction.text'
# Least time between two lines of the log about the same thing.
_BETWEEN_S = 2.0

EngineFactory = Callable[[Policy], Engine]


def start_engine(policy: Policy) -> Engine:
    """The engine of a policy, for one stream."""
    options = EngineOptions(compute=policy.compute, stall_s=policy.stall_s)
    return Engine(policy.spec, policy.plan, options=options)


class WamNode(LifecycleNode):
    """Observations in, action chunks out.

    All fields belong to the executor thread, except `_fault`, which the delivery thread sets when
    the stream ends by itself.
    """

    def __init__(self, start: EngineFactory = start_engine,
                 arguments: Sequence[str] | None = None) -> None:
        """``start`` starts the engine; ``arguments`` are those of a ROS command line."""
        super().__init__('wam_node', cli_args=arguments)
        self._start_engine = start
        self._state = 'unconfigured'
        self._settings = declare_wam_settings(self, self._fixed)
        self._steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._policy: Policy | None = None
        self._engine: Engine | None = None
        self._pipeline: PipelineWatch | None = None
        self._devices: DeviceWatch | None = None
        self._ring: RingWriter | None = None
        self._ingest: Ingest | None = None
        self._delivery: ChunkDelivery | None = None
        self._timed: TimedPublisher[JointTrajectory] | None = None
        self._rivals: RivalWatch | None = None
        self._times: SteadyTime | None = None
        self._chunks: LifecyclePublisher | None = None
        self._reports: LifecyclePublisher | None = None
        self._trajectories: LifecyclePublisher | None = None
        self._recording: SessionRecording | None = None
        self._stream_timers: list[Timer] = []
        self._paused_by_user = False
        self._unfit: list[str] = []
        self._refusal = ''  # why the engine did not take the newest observation
        self._untold = ''
        self._pause_log = PauseLog(self.get_logger())
        self._prompt: dict[str, np.ndarray] = {}
        self._fault = ''
        self.add_on_set_parameters_callback(self._check_instruction)
        self.add_post_set_parameters_callback(self._take_instruction)
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

    def _fixed(self, setting: Setting) -> str:
        """Why a parameter cannot be changed now: a value that does not count would mislead."""
        if setting.fixed_from == 'never' or self._state not in ('inactive', 'active'):
            return ''
        if setting.fixed_from == 'active':
            return '' if self._state == 'inactive' else (
                f'parameter `{setting.name}` counts from an activation on: deactivate the node '
                'first')
        return (f'parameter `{setting.name}` counts from a configuration on: deactivate the node '
                'and clean it up first')

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
            self._begin_recording()
            self._open_stream()
        except PhysisError as error:
            self.get_logger().error(f'not activated: {error}')
            self._close_stream()
            self._end_recording()
            super().on_deactivate(state)
            return TransitionCallbackReturn.FAILURE
        self._state = 'active'
        self._say_what_runs()
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the stream; the servo comes to rest and is silent."""
        self._close_stream()
        self._end_recording()
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
        self._end_recording()
        self._release()

    def _configure(self) -> None:
        settings = self._settings
        self._policy = policy = make_policy(settings)
        self._say_what_does_not_fit(policy)
        self._times = SteadyTime(self.get_clock(), settings['time_jump_ms'])
        self._ring = RingWriter(
            ring_name(settings['ring'], self.get_namespace()),
            RingFormat(policy.joints, policy.points))
        # Before the processes are started: what it refuses needs none of them.
        self._ingest = Ingest(
            self, settings, policy, self._times, self._observe, self._instructed)
        self._engine = self._start_engine(policy)
        self._pipeline = PipelineWatch(self._engine, settings['window_s'])
        self._devices = DeviceWatch()
        # A chunk that was not delivered within its horizon is of no use to anybody; a receiver
        # that asks for a deadline is told by the middleware when chunks stay away.
        chunk_quality = QoSProfile(
            depth=10, deadline=Duration(seconds=2e-3 * settings['period_ms']),
            lifespan=Duration(nanoseconds=policy.points * policy.control_period_ns))
        self._chunks = self.create_lifecycle_publisher(
            ActionChunk, '~/action_chunk', chunk_quality)
        self._reports = self.create_lifecycle_publisher(
            StreamReport, '~/stream_report', QoSProfile(depth=10))
        if settings['trajectory.topic']:
            self._trajectories = self.create_lifecycle_publisher(
                JointTrajectory, settings['trajectory.topic'], chunk_quality)
            self._rivals = RivalWatch(self, self._trajectories.topic_name)
            self._timed = TimedPublisher(
                self._trajectories.publish, round(settings['trajectory.early_ms'] * NS_PER_MS))
        self._stream_timers = [
            self.create_timer(1.0 / _WATCH_HZ, self._watch, clock=self._steady_clock),
            self.create_timer(1.0 / settings['report_hz'], self._publish_report,
                              clock=self._steady_clock)]

    def _say_what_runs(self) -> None:
        assert self._policy is not None
        settings, policy = self._settings, self._policy
        plan, devices = policy.plan, policy.plan.devices
        source = f' of {settings["plan_file"]}' if settings['plan_file'] else ''
        self.get_logger().info(
            f'active: model `{policy.description.name}`, plan `{plan.mode}`{source} on {devices} '
            f'worker{"s" if devices > 1 else ""} ({policy.compute}), a chunk every '
            f'{settings["period_ms"]:g} ms, lead {settings["lead_ms"]:g} ms')

    def _say_what_does_not_fit(self, policy: Policy) -> None:
        idle = idle_workers(policy, self._settings)
        if idle:
            self.get_logger().info(idle)
        crowd = crowded(policy, len(os.sched_getaffinity(0)))
        if crowd:
            self.get_logger().warning(crowd)

    def _release(self) -> None:
        for timer in self._stream_timers:
            self.destroy_timer(timer)
        self._stream_timers.clear()
        if self._timed is not None:
            self._timed.close()
        for publisher in (self._chunks, self._reports, self._trajectories):
            if publisher is not None:
                self.destroy_lifecycle_publisher(publisher)
        for part in (self._ingest, self._engine, self._devices, self._ring):
            if part is not None:
                part.close()
        self._policy = self._engine = self._ring = self._ingest = self._times = None
        self._timed = self._pipeline = self._devices = self._rivals = None
        self._chunks = self._reports = self._trajectories = None

    # -- the stream -----------------------------------------------------------------------------

    def _open_stream(self) -> None:
        settings = self._settings
        assert self._engine and self._policy and self._ring and self._ingest and self._times
        period_ns = round(settings['period_ms'] * NS_PER_MS)
        self._prompt = self._wanted_prompt()
        stream = self._engine.open_stream(StreamOptions(
            seed=settings['seed'], period_ns=period_ns,
            lead_ns=round(settings['lead_ms'] * NS_PER_MS), prompt=self._prompt))
        handover = make_handover(
            settings['handover.strategy'], decay=settings['handover.decay'],
            blend_ns=round(settings['handover.blend_ms'] * NS_PER_MS),
            prefix_points=settings['handover.prefix_points'])
        self._delivery = ChunkDelivery(
            stream, self._policy,
            OutputBuffer(handover, period_ns, round(settings['max_age_ms'] * NS_PER_MS)),
            self._ring, StreamAccount(settings['window_s'], settings['warm_up_chunks']),
            round(settings['lead_ms'] * NS_PER_MS) + period_ns,
            self._measured, self._publish_chunk, self._come_to_rest, self._fail)
        self._delivery.start()
        self._times.jump_ns()
        self._ingest.clear()
        self._pause_log.forgotten(time.monotonic_ns())
        self._ingest.active = True
        self._unfit, self._untold, self._refusal = [], '', ''
        self._apply_pause()

    def _close_stream(self) -> None:
        if self._ingest is not None:
            self._ingest.active = False
        if self._delivery is not None:
            self._delivery.close()
        self._delivery = None

    def _begin_recording(self) -> None:
        settings = self._settings
        if not settings['record']:
            return
        assert self._policy is not None
        sensors = outlets(settings, self._policy.joints, self.resolve_topic_name)
        instruction = settings['instruction.input']
        self._recording = recording = SessionRecording(
            Path(settings['record']), sensors,
            self.resolve_topic_name(settings['instruction.topic']))
        inputs = [*sensors, *([instruction] if instruction else [])]
        self.get_logger().info(f'recording {", ".join(inputs)} and chunks to {recording.folder}')
        for camera in settings['camera_names']:
            encoding = settings[f'cameras.{camera}.encoding']
            if encoding not in ('', recorded_encoding(settings, camera)):
                self.get_logger().warning(
                    f'camera `{camera}`: images are recorded as rgb8; for a replay, leave '
                    f'`cameras.{camera}.encoding` (`{encoding}`) empty')

    def _end_recording(self) -> None:
        if self._recording is not None:
            self._recording.close()
        self._recording = None

    def _observe(self, observation: Observation) -> None:
        if self._delivery is None or self._fault:
            return
        if self._recording is not None and self._times is not None:
            self._recording.observation(
                observation.arrays, self._instruction_text(),
                self._times.stamp(observation.capture_ns),
                self._times.stamp(time.monotonic_ns()))
        refusal = ''
        try:
            self._delivery.stream.observe(
                {**observation.arrays, **self._prefix(self._delivery)}, observation.capture_ns)
        except StreamError as error:
            self._fail(str(error))
        except InputError as error:
            refusal = str(error)
        if refusal != self._refusal:  # nothing is made from the observation before either
            self._refusal = refusal
            self._apply_pause()

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
        if not self._fault:
            self.get_logger().error(f'stopped: {reason}; call ~/reset to go on')
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        """Come to rest and stay there until a reset (either thread)."""
        self._fault = reason
        if self._delivery is None:
            return
        self._delivery.stop(reason)

    def _come_to_rest(self, plan: Timeline) -> None:
        """Stop whoever follows trajectories: the last thing that is said of a plan.

        Called when no chunk of it can come any more.  What waits for its time is not sent.
        """
        if self._timed is None:
            return
        assert self._policy is not None
        settings, policy = self._settings, self._policy
        rest = way_to_rest(
            plan, time.monotonic_ns(), policy.control_period_ns,
            round(settings['trajectory.early_ms'] * NS_PER_MS),
            settings['trajectory.deceleration'])
        if rest is None:
            self._timed.clear()
        else:
            self._timed.only(stop_trajectory(rest, policy.joints))

    def _apply_pause(self) -> None:
        if self._delivery is not None:
            self._delivery.pause(bool(self._pause_reason() or self._fault),
                                 wanted=self._paused_by_user)

    def _pause_reason(self) -> str:
        reasons = ['by ~/pause'] if self._paused_by_user else []
        if self._untold:
            reasons.append(self._untold)
        if self._unfit:
            reasons.append(f'no fresh input from {", ".join(self._unfit)}')
        if self._refusal:
            reasons.append(self._refusal)
        return ' and '.join(reasons)

    # -- watching -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look after sources, clocks and servo, many times a second."""
        if self._delivery is None or self._ingest is None or self._times is None:
            return
        now_ns = time.monotonic_ns()
        jump_ns = self._times.jump_ns()
        if jump_ns:
            self.get_logger().warning(f'ROS time jumped by {jump_ns / NS_PER_S:+.3f} s: new epoch',
                                      throttle_duration_sec=_BETWEEN_S)
            with suppress(StreamError):  # an ended stream waits for ~/reset
                self._begin_epoch()
        self._delivery.look_at_servo(now_ns)
        untold = self._ingest.untold()
        unfit = [source.name for source in self._ingest.unfit(now_ns)]
        if (unfit, untold) != (self._unfit, self._untold):
            if untold and not self._untold:
                self.get_logger().info(untold)
            self._unfit, self._untold = unfit, untold
            self._apply_pause()
        self._pause_log.look(unfit, now_ns)

    def _begin_epoch(self) -> None:
        """Drop everything in flight and everything seen."""
        assert self._ingest is not None
        if self._delivery is None:
            return
        self._delivery.reset()
        self._ingest.clear()
        self._pause_log.forgotten(time.monotonic_ns())

    # -- instruction ----------------------------------------------------------------------------

    def _instruction_text(self) -> str:
        """The newest; empty where there is none."""
        instruction = self._ingest.instruction if self._ingest is not None else None
        return '' if instruction is None else instruction.source.text

    def _wanted_prompt(self) -> dict[str, np.ndarray]:
        """What the stream is to be opened with."""
        instruction = self._ingest.instruction if self._ingest is not None else None
        return {} if instruction is None else instruction.prompt

    def _instructed(self) -> None:
        """Another instruction: as a prompt it begins a new stream, which a latched stop outlasts.

        As part of the observation it goes with the next one.
        """
        assert self._ingest is not None and self._ingest.instruction is not None
        self.get_logger().info(f'instruction: `{self._ingest.instruction.source.text}`')
        if self._delivery is None or self._fault or not self._prompt_is_old():
            return
        try:
            self._reopen()
        except PhysisError as error:
            self._fail(f'no stream for the new instruction: {error}')

    def _prompt_is_old(self) -> bool:
        wanted = self._wanted_prompt()
        return any((self._prompt[name] != wanted[name]).any() for name in wanted)

    def _check_instruction(self, parameters: list[Parameter]) -> SetParametersResult:
        """Refuse a text that the configured model cannot take."""
        instruction = self._ingest.instruction if self._ingest is not None else None
        for parameter in parameters:
            if parameter.name == _INSTRUCTION and instruction is not None:
                try:
                    instruction.encoded(str(parameter.value))
                except InputError as error:
                    return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _take_instruction(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.name == _INSTRUCTION and self._ingest is not None:
                self._ingest.instruct(str(parameter.value))

    # -- services -------------------------------------------------------------------------------

    def _reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Begin a new epoch; lifts a stop."""
        response.success = False
        if self._state != 'active':
            response.message = f'the node is {self._state}; activate it first'
            return response
        delivery = self._delivery
        try:
            if delivery is None or delivery.stream.ended is not None or self._prompt_is_old():
                self._reopen()
            else:
                self._begin_epoch()
        except PhysisError as error:
            response.message = f'not reset: {error}'
            return response
        assert self._delivery is not None
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
        if self._fault and not request.data:
            response.success = False
            response.message = f'stopped: {self._fault}; call ~/reset to go on'
            return response
        self._paused_by_user = request.data
        self._apply_pause()
        response.success = True
        response.message = 'paused' if request.data else 'running'
        return response

    def _stop_request(self, request: Trigger.Request, response: Trigger.Response
                      ) -> Trigger.Response:
        """Come to rest and stay there until ~/reset.  Not an emergency stop."""
        if not self._fault:
            self.get_logger().warning('stopped: stop requested; call ~/reset to go on')
            self._stop('stop requested')
        response.success = True
        response.message = 'stopped; call ~/reset to go on'
        return response

    # -- publishing -----------------------------------------------------------------------------

    def _publish_chunk(self, chunk: PlannedChunk) -> None:
        """Publish a delivered chunk (delivery thread)."""
        assert self._policy and self._times and self._chunks
        joints = self._policy.joints
        if self._recording is not None:
            self._recording.chunk(chunk)
        self._chunks.publish(
            action_chunk(chunk, self._settings['stream_id'], joints, self._times))
        if self._timed is not None:
            assert self._delivery is not None  # whose thread this is
            self._timed.give(joint_trajectory(
                chunk, joints, self._times, self._settings['trajectory.deceleration']),
                chunk.due_ns, partial(self._delivery.sent, chunk))

    def _status(self) -> StreamStatus | None:
        delivery, ingest = self._delivery, self._ingest
        if delivery is None or ingest is None:
            return None
        now_ns = time.monotonic_ns()
        feedback = delivery.look_at_servo(now_ns)
        numbers, counts, depth = delivery.numbers(now_ns)
        return StreamStatus(
            now_ns=now_ns, epoch=delivery.epoch,
            sources=ingest.health(now_ns),
            numbers=numbers, counts=counts, depth=depth, in_flight=delivery.stream.in_flight,
            feedback=feedback, underruns=delivery.underruns(feedback) if feedback else 0,
            paused=self._pause_reason(), fault=self._fault)

    def _publish_report(self) -> None:
        status = self._status()
        if status is not None and self._times is not None and self._reports is not None:
            self._reports.publish(stream_report(
                status, self._settings['stream_id'], self._settings['window_s'], self._times))

    def _publish_diagnostics(self) -> None:
        if self._rivals is not None:
            self._rivals.look()
        status, name = self._status(), component(self)
        message = DiagnosticArray(status=statuses(
            name, self._state, self._fault if self._state == 'active' else '', status,
            self._thresholds() if status else None, self._settings['trajectory.topic']))
        if self._engine is not None and self._pipeline is not None and self._devices is not None:
            message.status += [
                stage_status(name, self._engine.stage_logs()),
                self._pipeline.status(
                    name, self._delivery.stream if self._delivery is not None else None,
                    self._limit('held_back_ratio')),
                self._devices.status(name, self._engine.device_processes(),
                                     self._limit('temperature_c'), self._limit('memory_share'))]
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _thresholds(self) -> Thresholds:
        settings = self._settings
        expected_hz = {camera: settings[f'cameras.{camera}.expected_hz']
                       for camera in settings['camera_names']}
        expected_hz.update({
            settings[f'{source}.input']: settings[f'{source}.expected_hz']
            for source in ('joints', 'wrench') if settings[f'{source}.expected_hz']})
        return Thresholds(
            age_s=self._limit('age_ms', 1e-3), on_time=self._limit('on_time_ratio'),
            rate=self._limit('rate_share'), replan=self._limit('replan_share'),
            dropped=self._limit('dropped_ratio'), chunk_hz=1e3 / settings['period_ms'],
            sensor_hz=expected_hz, lead_s=settings['lead_ms'] / 1e3)

    def _limit(self, name: str, scale: float = 1.0) -> Limit:
        return Limit(scale * self._settings[f'warn.{name}'],
                     scale * self._settings[f'error.{name}'])


def main() -> int:
    """Run the node until it is told to stop."""
    torch.set_num_threads(1)  # images are small; the workers need the cores
    # Own handlers: those of rclpy would end the context before the way to rest is sent.
    try:
        start_ros()
        ending = Ending(*endings())
        node = WamNode(partial(_start_until_told, ending))
        check_parameter_files(node)
    except InputError as error:
        print(f'wam_node: {error}', file=sys.stderr)
        rclpy.try_shutdown()
        return 1
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    failed = False
    try:
        if node.autostart:
            failed = (node.trigger_configure() is not TransitionCallbackReturn.SUCCESS
                      or node.trigger_activate() is not TransitionCallbackReturn.SUCCESS)
        while not failed and not ending.told.is_set():
            executor.spin_once(timeout_sec=_LOOK_S)
    except ExternalShutdownException:
        pass
    finally:
        node.close()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
        ignore_endings()
    return int(failed and not ending.told.is_set())


def _start_until_told(ending: Ending, policy: Policy) -> Engine:
    """The engine; its start takes seconds, or minutes with large weights.

    Raises:
        PhysisError: it could not be started, or the process was told to end meanwhile.
    """
    engine: Engine | None = None
    try:
        with ending.breaking():
            engine = start_engine(policy)
    except KeyboardInterrupt as interrupt:
        if engine is not None:
            engine.close()
        raise PhysisError('told to end while the engine was starting') from interrupt
    return engine


if __name__ == '__main__':
    sys.exit(main())
