"""The node that listens in on every topic of the demo and writes a recording."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rclpy.time import Time
from sensor_msgs.msg import Image, JointState, TimeReference
from std_msgs.msg import Float64MultiArray

from physis_ros.demo.recording import ChunkSeen, EpisodeSeen, Recording
from physis_ros.demo.scene import CAMERAS, JOINT_NAMES
from physis_ros.demo.topics import (
    TASK_STATUS,
    TRAJECTORY_RECEIVED,
    TRAJECTORY_REJECTED,
    TRAJECTORY_STARTED,
)
from physis_ros.msg import ActionChunk

_FRAME_EVERY_NS = 500_000_000
# Deep enough that a pause of the recorder loses nothing; every number counts arrivals, which the
# middleware stamps.
_DEPTH = 1000
_PENDING_EVENTS = 100
_SAME_PLAN_NS = 2_000_000

MessageInfo = Mapping[str, Any]


class Recorder(Node):
    """Subscribes everything; all callbacks run in the thread that spins it.

    Attributes:
        recording: where everything is written.
        task: the latest task status of the robot, by key; empty until it came.
    """

    def __init__(self, recording: Recording, trajectories: bool) -> None:
        """`trajectories`: whether the controller plays trajectories, else the servo's commands."""
        super().__init__('demo_recorder')
        self.recording = recording
        self.task: Mapping[str, str] = {}
        self._recent: deque[ChunkSeen] = deque(maxlen=_PENDING_EVENTS)
        self._early_events: deque[tuple[int, str, int]] = deque(maxlen=_PENDING_EVENTS)
        self._last_frame_ns = dict.fromkeys(CAMERAS, 0)
        self._unplayed: deque[ChunkSeen] = deque(maxlen=_PENDING_EVENTS)
        for camera in CAMERAS:
            self.create_subscription(
                Image, f'/camera/{camera}/image_raw', self._image_taker(camera), _DEPTH)
        self.create_subscription(JointState, '/joint_states', self._take_joints, _DEPTH)
        self.create_subscription(
            Float64MultiArray, '/so101/joint_targets', self._take_targets, _DEPTH)
        self.create_subscription(
            Float64MultiArray, '/arm_controller/commands',
            self._take_servo if trajectories else self._take_playing_servo, _DEPTH)
        self.create_subscription(
            ActionChunk, '/wam_node/action_chunk',
            self._take_chunk if trajectories else self._take_arrived_chunk, _DEPTH)
        self.create_subscription(
            TimeReference, '/arm_controller/trajectory_events', self._take_event, _DEPTH)
        self.create_subscription(DiagnosticArray, '/diagnostics', self._take_diagnostics, 100)
        self.create_subscription(DiagnosticStatus, '/so101/task', self._take_task, 100)
        self.create_subscription(
            Float64MultiArray, '/so101/scene_state', self._take_state, 100)

    @property
    def episode(self) -> EpisodeSeen | None:
        """The episode that is under way."""
        episodes = self.recording.episodes
        return episodes[-1] if episodes and not episodes[-1].ended_ns else None

    def now_ns(self) -> int:
        """The clock of the recording."""
        return self.get_clock().now().nanoseconds

    # -- sensors -------------------------------------------------------------------------------

    def _image_taker(self, camera: str) -> Callable[[Image, MessageInfo], None]:
        def take(message: Image, info: MessageInfo) -> None:
            time_ns = info['received_timestamp']
            self.recording.add_sensor(camera, time_ns)
            if self.episode is not None and (
                    time_ns - self._last_frame_ns[camera] >= _FRAME_EVERY_NS):
                self._last_frame_ns[camera] = time_ns
                pixels = np.frombuffer(message.data, np.uint8)
                self.episode.frames.append(
                    (camera, pixels.reshape(message.height, message.width, 3).copy()))
        return take

    def _take_joints(self, message: JointState, info: MessageInfo) -> None:
        time_ns = info['received_timestamp']
        self.recording.add_sensor('joint_states', time_ns)
        rows = [message.name.index(name) for name in JOINT_NAMES]
        self.recording.measured.append((time_ns, tuple(message.position[row] for row in rows)))

    # -- commands ------------------------------------------------------------------------------

    def _take_targets(self, message: Float64MultiArray, info: MessageInfo) -> None:
        time_ns = info['received_timestamp']
        self.recording.targets.append(time_ns)
        self.recording.commanded.append((time_ns, tuple(message.data)))

    def _take_servo(self, _: Float64MultiArray, info: MessageInfo) -> None:
        self.recording.servo.append(info['received_timestamp'])

    def _take_playing_servo(self, message: Float64MultiArray, info: MessageInfo) -> None:
        """The servo moves the arm: its first command after a chunk's planned start plays it."""
        self._take_servo(message, info)
        time_ns = info['received_timestamp']
        begun = None
        while self._unplayed and self._unplayed[0].planned_ns <= time_ns:
            begun = self._unplayed.popleft()
        if begun is not None:
            begun.effect_ns = time_ns

    # -- chunks --------------------------------------------------------------------------------

    def _take_chunk(self, message: ActionChunk, _: MessageInfo) -> ChunkSeen:
        chunk = ChunkSeen(
            epoch=message.epoch, chunk=message.chunk_id,
            planned_ns=Time.from_msg(message.header.stamp).nanoseconds,
            capture_ns=Time.from_msg(message.capture_stamp).nanoseconds,
            capture_s=message.age_capture_s, queue_s=message.age_queue_s,
            response_s=message.age_response_s, sent_on_time=message.on_time)
        self.recording.add_chunk(chunk)
        self._recent.append(chunk)
        for planned_ns, what, time_ns in self._early_events:
            if _same_plan(chunk, planned_ns):
                _note(chunk, what, time_ns)
        return chunk

    def _take_arrived_chunk(self, message: ActionChunk, info: MessageInfo) -> None:
        chunk = self._take_chunk(message, info)
        chunk.arrived_ns = info['received_timestamp']
        self._unplayed.append(chunk)

    def _take_event(self, message: TimeReference) -> None:
        planned_ns = Time.from_msg(message.time_ref).nanoseconds
        time_ns = Time.from_msg(message.header.stamp).nanoseconds
        chunks = [chunk for chunk in self._recent if _same_plan(chunk, planned_ns)]
        if chunks:
            _note(chunks[-1], message.source, time_ns)
        else:
            self._early_events.append((planned_ns, message.source, time_ns))

    # -- the robot's own view ------------------------------------------------------------------

    def _take_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.recording.diagnostics[status.name] = {
                'message': status.message, **{item.key: item.value for item in status.values}}

    def _take_task(self, message: DiagnosticStatus) -> None:
        if message.name == TASK_STATUS:
            self.task = {item.key: item.value for item in message.values}

    def _take_state(self, message: Float64MultiArray, info: MessageInfo) -> None:
        if self.episode is not None:
            self.episode.states.append((info['received_timestamp'], list(message.data)))


def _same_plan(chunk: ChunkSeen, planned_ns: int) -> bool:
    """Whether a stamp means this chunk; two conversions from steady time differ a little."""
    return abs(chunk.planned_ns - planned_ns) < _SAME_PLAN_NS


def _note(chunk: ChunkSeen, event: str, time_ns: int) -> None:
    """Write down what the controller did with a chunk."""
    if event == TRAJECTORY_RECEIVED:
        chunk.arrived_ns = time_ns
    elif event == TRAJECTORY_STARTED:
        chunk.effect_ns = time_ns
    elif event == TRAJECTORY_REJECTED:
        chunk.rejected = True
