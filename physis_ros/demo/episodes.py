"""Running episodes: everything is put in place, the policy is let loose, the outcome is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from std_srvs.srv import SetBool, Trigger

from physis_ros.demo.calls import Calls
from physis_ros.demo.recorder import Recorder
from physis_ros.demo.recording import EpisodeSeen

START_LIMIT_S = 120.0
SIMULATED_LIMIT_S = 12.0
_SILENT_NS = 100_000_000  # many periods of the servo
_HOLD_S = 0.5
_TICK_S = 0.05
_ANSWER_LIMIT_S = 5.0

OnTick = Callable[[EpisodeSeen], None]


class EpisodeRunner:
    """Resets and runs episodes over the same services that a user would call.

    Order of a reset: the policy is paused and the controller inactive before the scene changes, so
    that nothing computed from the old scene can move the arm in the new one.
    """

    def __init__(self, recorder: Recorder, calls: Calls,
                 limit_s: float = SIMULATED_LIMIT_S) -> None:
        """`limit_s`: simulated time after which an episode ends without success."""
        self._recorder = recorder
        self._calls = calls
        self._limit_s = limit_s

    def wait_for_robot_and_policy(self) -> None:
        """Wait until all parts answer, with the policy paused."""
        sensors = self._recorder.recording.sensors
        self._calls.wait_until(
            lambda: len(sensors) == 3, START_LIMIT_S, 'images of both cameras and joint states')
        self._calls.call(SetBool, '/wam_node/pause', SetBool.Request(data=True), START_LIMIT_S)

    def run(self, on_tick: OnTick) -> EpisodeSeen:
        """Run one episode; `on_tick` is called about twenty times a second."""
        self._reset()
        begin = self._task()
        episode = EpisodeSeen(begin.episode, begin.seed, self._recorder.now_ns())
        self._recorder.recording.episodes.append(episode)
        self._calls.call(SetBool, '/wam_node/pause', SetBool.Request(data=False))
        while not episode.success and episode.simulated_s < self._limit_s:
            self._calls.spin(_TICK_S)
            task = self._task()
            episode.success = task.success
            episode.simulated_s = task.simulated_s - begin.simulated_s
            episode.slipped_s = task.slipped_s - begin.slipped_s
            on_tick(episode)
        episode.ended_ns = self._recorder.now_ns()
        return episode

    def pause(self) -> None:
        """Stop the policy, then the controller."""
        self._calls.call(SetBool, '/wam_node/pause', SetBool.Request(data=True))
        self._calls.call(SetBool, '/arm_controller/set_active', SetBool.Request(data=False))

    def _reset(self) -> None:
        self.pause()
        before = self._recorder.task.get('episode')
        self._calls.call(Trigger, '/so101/reset', Trigger.Request())
        self._calls.wait_until(
            lambda: self._recorder.task.get('episode') != before, _ANSWER_LIMIT_S,
            'the task status of the new episode')
        # Before the controller listens again: the servo comes to rest where the old episode ended,
        # and falls silent in the new epoch.
        self._calls.call(Trigger, '/wam_node/reset', Trigger.Request())
        self._calls.wait_until(self._servo_silent, _ANSWER_LIMIT_S, 'the servo to fall silent')
        self._calls.call(SetBool, '/arm_controller/set_active', SetBool.Request(data=True))
        self._calls.spin(_HOLD_S)

    def _servo_silent(self) -> bool:
        servo = self._recorder.recording.servo
        return not servo or self._recorder.now_ns() - servo[-1] > _SILENT_NS

    def _task(self) -> _Task:
        values = self._recorder.task
        return _Task(int(values['episode']), int(values['seed']), values['success'] == '1',
                     float(values['simulated_s']), float(values['slipped_s']))


@dataclass(frozen=True)
class _Task:
    """The robot's task status as numbers."""

    episode: int
    seed: int
    success: bool
    simulated_s: float
    slipped_s: float
