"""Commands are continuous in position and velocity, whatever the plan does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from chunks import MS, PERIOD_NS, ramp

from physis_core.delivery.limits import JointLimits
from physis_core.delivery.ring import ServoState
from physis_core.delivery.servo import Command, ServoPlayer

TICK_NS = 4 * MS
UNKNOWN = np.full(2, np.nan)
DECELERATION = 10.0


def player(limits: JointLimits | None = None, splice_s: float = 0.06) -> ServoPlayer:
    player = ServoPlayer(limits or JointLimits.none(2, DECELERATION), splice_s, 0.1,
                         TICK_NS * 1e-9)
    player.begin_epoch(1)
    return player


def run(servo: ServoPlayer, begin_ns: int, end_ns: int,
        events: dict[int, Callable[[], None]] | None = None) -> list[Command | None]:
    commands = []
    for now_ns in range(begin_ns, end_ns, TICK_NS):
        for due_ns in sorted(events or {}):
            if due_ns <= now_ns:
                (events or {}).pop(due_ns)()
        commands.append(servo.step(now_ns))
    return commands


def said(commands: list[Command | None]) -> list[Command]:
    return [command for command in commands if command is not None]


def biggest_steps(commands: list[Command]) -> tuple[float, float]:
    positions = np.array([command.position for command in commands])
    velocities = np.array([command.velocity for command in commands])
    return (float(np.abs(np.diff(positions, axis=0)).max()),
            float(np.abs(np.diff(velocities, axis=0)).max()))


def test_nothing_is_said_before_the_first_chunk() -> None:
    assert not said(run(player(), 0, 400 * MS))


def test_the_first_command_is_where_the_arm_is() -> None:
    servo = player()
    servo.accept(ramp(0, 100 * MS, start=0.5), np.array([0.3, 0.3]))
    commands = said(run(servo, 0, 250 * MS))
    assert commands[0].position == pytest.approx(0.3)
    assert commands[0].velocity == pytest.approx(0.0)
    position_step, _ = biggest_steps(commands)
    assert position_step < 0.03
    assert commands[-1].position == pytest.approx(0.5 + (248 - 100) * 1e-3, abs=1e-9)


def test_chunks_that_agree_are_followed_exactly() -> None:
    servo = player()
    for chunk in range(3):
        due_ns = (100 + 160 * chunk) * MS
        servo.accept(ramp(chunk, due_ns, start=0.16 * chunk), np.zeros(2))
    commands = run(servo, 0, 500 * MS)
    for now_ns in range(200 * MS, 500 * MS, TICK_NS):
        command = commands[now_ns // TICK_NS]
        assert command is not None
        assert command.position == pytest.approx((now_ns - 100 * MS) * 1e-9, abs=1e-9)


def test_a_chunk_that_is_there_in_time_is_joined_from_the_last_point_of_the_one_before() -> None:
    """What a policy planned is done when it was planned, as far as the limits allow."""
    limits = JointLimits(
        np.full(2, -3.0), np.full(2, 3.0), np.full(2, 8.0), np.full(2, 2000.0), np.full(2, 20.0))
    servo = player(limits)
    servo.accept(ramp(0, 100 * MS), np.zeros(2))
    second = ramp(1, 260 * MS, start=0.20)
    commands = said(run(servo, 0, 420 * MS, {200 * MS: lambda: servo.accept(second, UNKNOWN)}))
    position_step, _ = biggest_steps(commands)
    assert position_step <= 8.0 * TICK_NS * 1e-9 + 1e-9
    for now_ns in range(264 * MS, 420 * MS, TICK_NS):
        planned = 0.20 + (now_ns - 260 * MS) * 1e-9
        assert commands[(now_ns - 100 * MS) // TICK_NS].position == pytest.approx(planned, abs=1e-3)


@pytest.mark.parametrize('late_ms', [0, 30, 90])
def test_a_jump_of_the_plan_does_not_reach_the_arm(late_ms: int) -> None:
    """The next chunk disagrees by 0.2 rad, and arrives when it is due or late."""
    servo = player()
    servo.accept(ramp(0, 100 * MS), np.zeros(2))
    second = ramp(1, 260 * MS, start=0.36)
    commands = said(run(servo, 0, 420 * MS, {
        (260 + late_ms) * MS: lambda: servo.accept(second, UNKNOWN)}))
    position_step, velocity_step = biggest_steps(commands)
    assert position_step < 0.05  # the fade of 0.2 rad in 60 ms moves at most 5 rad/s
    assert velocity_step < 6 * 0.2 / 0.06**2 * 4e-3 * 1.5
    assert commands[-1].position == pytest.approx(0.36 + (416 - 260) * 1e-3, abs=1e-9)


def test_each_chunk_takes_effect_once_at_its_first_tick() -> None:
    servo = player()
    for chunk in range(3):
        servo.accept(ramp(chunk, (100 + 160 * chunk) * MS, start=0.16 * chunk), np.zeros(2))
    effects = {now_ns: command.effective.chunk
               for now_ns, command in zip(range(0, 600 * MS, TICK_NS), run(servo, 0, 600 * MS),
                                          strict=True)
               if command is not None and command.effective is not None}
    assert effects == {100 * MS: 0, 260 * MS: 1, 420 * MS: 2}


def test_without_a_next_chunk_it_plays_until_valid_until_then_brakes_and_holds() -> None:
    servo = player()
    chunk = ramp(0, 100 * MS)
    servo.accept(chunk, np.zeros(2))
    run(servo, 0, chunk.valid_until_ns - TICK_NS)
    assert servo.state is ServoState.PLAYING
    commands = said(run(servo, chunk.valid_until_ns, chunk.valid_until_ns + 400 * MS))
    assert servo.state is ServoState.HOLDING
    assert servo.underruns == 1
    speeds = np.array([command.velocity[0] for command in commands])
    assert (np.diff(speeds) <= 1e-12).all()
    assert np.abs(np.diff(speeds)).max() <= DECELERATION * TICK_NS * 1e-9 + 1e-12
    assert speeds[-1] == 0.0
    assert commands[-1].position == pytest.approx(commands[-20].position)


def test_it_goes_on_smoothly_after_a_hold() -> None:
    servo = player()
    servo.accept(ramp(0, 100 * MS), np.zeros(2))
    run(servo, 0, 800 * MS)
    servo.accept(ramp(5, 820 * MS, start=0.5), np.zeros(2))
    commands = said(run(servo, 800 * MS, 960 * MS))
    assert servo.state is ServoState.PLAYING
    position_step, _ = biggest_steps(commands)
    assert position_step < 0.05


def test_a_stop_is_latched_until_the_next_epoch() -> None:
    servo = player()
    servo.accept(ramp(0, 100 * MS), np.zeros(2))
    run(servo, 0, 180 * MS)
    servo.stop('stop requested')
    servo.accept(ramp(1, 260 * MS), np.zeros(2))
    commands = said(run(servo, 180 * MS, 600 * MS))
    assert servo.state is ServoState.STOPPED
    _, velocity_step = biggest_steps(commands)
    assert velocity_step <= DECELERATION * TICK_NS * 1e-9 + 1e-12
    assert servo.position == pytest.approx(commands[-1].position)
    servo.begin_epoch(2)
    servo.accept(ramp(0, 700 * MS, epoch=2), np.zeros(2))
    assert said(run(servo, 680 * MS, 760 * MS))
    assert servo.state is ServoState.PLAYING


def test_a_reset_drops_the_plan_brakes_and_falls_silent() -> None:
    servo = player()
    servo.accept(ramp(0, 100 * MS), np.zeros(2))
    run(servo, 0, 180 * MS)
    servo.begin_epoch(2)
    servo.accept(ramp(1, 260 * MS, epoch=1), np.zeros(2))  # of before the reset
    commands = run(servo, 180 * MS, 600 * MS)
    assert said(commands)[-1].velocity == pytest.approx(0.0)
    assert commands[-1] is None
    assert servo.state is ServoState.IDLE


@pytest.mark.parametrize(('found', 'start'), [(0.05, 0.08), (1.0, 1.0)])
def test_an_arm_that_was_moved_meanwhile_starts_from_where_it_is(found: float, start: float
                                                                 ) -> None:
    servo = player()
    servo.accept(ramp(0, 100 * MS, speed=0.5), np.zeros(2))
    run(servo, 0, 800 * MS)
    resting = servo.position
    assert resting is not None
    servo.begin_epoch(2)
    servo.accept(ramp(0, 820 * MS, start=0.9, epoch=2), np.full(2, found))
    first = said(run(servo, 800 * MS, 840 * MS))[0]
    expected = found if abs(found - resting[0]) > 0.1 else resting[0]
    assert first.position == pytest.approx(expected)


def test_a_measurement_from_before_the_arm_rested_does_not_move_it() -> None:
    """The first chunk of an epoch is there while the arm still brakes: it says where it was."""
    servo = player()
    servo.accept(ramp(0, 0, speed=3.0), np.zeros(2))
    commands = said(run(servo, TICK_NS, 160 * MS))
    servo.begin_epoch(2)
    commands += said(run(servo, 160 * MS, 200 * MS))
    where_it_was = commands[-1].position
    servo.accept(ramp(0, 700 * MS, start=1.2, speed=0.0, epoch=2), where_it_was)
    commands += said(run(servo, 200 * MS, 900 * MS))
    assert commands[-1].position == pytest.approx(1.2)
    position_step, _ = biggest_steps(commands)
    assert position_step < 0.1  # it came to rest 0.3 rad further on


def test_limits_hold_and_are_met_without_overshoot() -> None:
    limits = JointLimits(
        np.full(2, -1.0), np.full(2, 1.0), np.full(2, 1.5), np.full(2, 20.0), np.full(2, 10.0))
    servo = player(limits)
    chunk = ramp(0, 100 * MS, start=0.0, speed=8.0, points=40)
    servo.accept(chunk, np.zeros(2))
    commands = said(run(servo, 0, 900 * MS))
    positions = np.array([command.position for command in commands])
    velocities = np.array([command.velocity for command in commands])
    assert positions.max() <= 1.0
    assert np.abs(velocities).max() <= 1.5 + 1e-9
    assert np.abs(np.diff(velocities, axis=0)).max() <= 20.0 * TICK_NS * 1e-9 + 1e-9
    assert (np.diff(positions, axis=0) >= -1e-12).all()
    assert servo.limited > 0


@pytest.mark.parametrize('seed', range(10))
def test_limits_hold_whatever_is_planned_and_the_plan_is_met_in_the_end(seed: int) -> None:
    """Also where a plan that moves too fast is only crossed: its speed is not the arm's."""
    rng = np.random.default_rng(seed)
    far, tick_s = np.full(2, np.inf), TICK_NS * 1e-9
    speed, acceleration = 8.0, 150.0
    servo = player(JointLimits(
        -far, far, np.full(2, speed), np.full(2, acceleration), np.full(2, DECELERATION)))
    events: dict[int, Callable[[], None]] = {}
    for number in range(20):
        due_ns = (100 + 160 * number) * MS
        chunk = ramp(number, due_ns, start=rng.normal(0.0, rng.choice([0.02, 0.3, 1.0])),
                     speed=rng.choice([-5.0, -0.5, 0.0, 2.0, 20.0]))
        events[due_ns + rng.integers(-90, 90) * MS] = partial(servo.accept, chunk, np.zeros(2))
    last_ns = (100 + 160 * 20) * MS
    events[last_ns - 30 * MS] = partial(
        servo.accept, ramp(20, last_ns, start=0.2, speed=0.0, points=50), np.zeros(2))
    positions = np.array([command.position for command in said(
        run(servo, 0, last_ns + 980 * MS, events))])
    speeds = np.diff(positions, axis=0) / tick_s
    assert np.abs(speeds).max() <= speed + 1e-6
    # A change of speed within a step is seen in the differences of two.
    assert np.abs(np.diff(speeds, axis=0)).max() <= 1.5 * acceleration * tick_s + 1e-6
    assert positions[-1] == pytest.approx(0.2, abs=1e-9)


def test_a_plan_that_begins_at_full_speed_does_not_throw_a_resting_arm_the_other_way() -> None:
    """As when a policy opens a gripper at once; limits as of a small arm."""
    limits = JointLimits(
        np.full(2, -3.0), np.full(2, 3.0), np.full(2, 8.0), np.full(2, 150.0), np.full(2, 20.0))
    servo = player(limits)
    servo.accept(ramp(0, 100 * MS, speed=15.0), np.zeros(2))
    servo.accept(ramp(1, 260 * MS, start=2.0, speed=0.0), np.zeros(2))
    positions = np.array([command.position for command in said(run(servo, 0, 420 * MS))])
    assert positions.min() > -0.01
    assert positions[(260 + 80 - 100) // 4:].min() > 1.5
    assert positions[-1] == pytest.approx(2.0, abs=0.02)


def test_missed_ticks_do_not_shift_the_plan() -> None:
    servo = player()
    servo.accept(ramp(0, 100 * MS), np.zeros(2))
    run(servo, 0, 120 * MS)
    command = servo.step(240 * MS)
    assert command is not None
    assert command.position == pytest.approx(0.14, abs=1e-9)


@pytest.mark.parametrize('missed', [1, 4, 20])
@pytest.mark.parametrize('ends', [False, True])
def test_missed_ticks_never_make_a_command_step_longer_than_the_speed_limit_allows(
        missed: int, ends: bool) -> None:
    """The arm holds the last command while ticks are missed: it must not be thrown afterwards."""
    speed, tick_s = 8.0, TICK_NS * 1e-9
    limits = JointLimits(
        np.full(2, -9.0), np.full(2, 9.0), np.full(2, speed), np.full(2, 2000.0), np.full(2, 50.0))
    servo = player(limits)
    servo.accept(ramp(0, 0, speed=0.75 * speed, points=12), np.zeros(2))
    commands = said(run(servo, TICK_NS, 160 * MS))
    assert commands[-1].velocity == pytest.approx(0.75 * speed)  # it follows the plan exactly
    if ends:
        servo.stop('by the test')
    # The last tick was at 156 ms; those until `resumed` never ran.
    resumed = (156 + 4 * (missed + 1)) * MS
    commands += said(run(servo, resumed, 700 * MS))
    position_step, _ = biggest_steps(commands)
    assert 0.75 * speed * tick_s < position_step <= speed * tick_s + 1e-9
    assert not commands[-1].velocity.any()


def test_the_state_stays_bounded() -> None:
    servo = player()
    for chunk in range(300):
        due_ns = chunk * 8 * PERIOD_NS
        servo.accept(ramp(chunk, due_ns, speed=0.0), np.zeros(2))
        for now_ns in range(due_ns - 8 * PERIOD_NS, due_ns, 40 * MS):
            if now_ns > 0:
                servo.step(now_ns)
    assert servo.planned_points <= 40
