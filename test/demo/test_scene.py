"""The simulated tabletop and its expert."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip('physis_ros.demo.expert', reason='needs the extra `demo`')

from physis_ros.demo.expert import ScriptedExpert
from physis_ros.demo.scene import CAMERAS, CONTROL_PERIOD_S, Scene


@pytest.fixture(scope='module')
def scene() -> Iterator[Scene]:
    built = Scene()
    yield built
    built.close()


def test_a_seed_is_a_scene(scene: Scene) -> None:
    scene.reset(5)
    first = (scene.cube_m(), scene.goal_m, scene.render_all())
    scene.step(np.full(6, 0.3))
    scene.reset(6)
    assert not np.array_equal(scene.cube_m(), first[0])
    scene.reset(5)
    for again, before in zip((scene.cube_m(), scene.goal_m, scene.render_all()), first,
                             strict=True):
        np.testing.assert_array_equal(again, before)


def test_meshes_are_light_enough_for_a_cpu(scene: Scene) -> None:
    assert 5_000 < scene.model.nmeshface < 15_000


def test_cameras_see_cube_and_disc(scene: Scene) -> None:
    scene.reset(5)
    front, wrist = scene.render_all()
    assert front.shape == wrist.shape == (64, 64, 3)
    assert front.dtype == np.uint8
    green = (front[..., 1] > 120) & (front[..., 0] < 80) & (front[..., 2] < 120)
    assert green.sum() > 5
    assert scene.render('front', 120, 160).shape == (120, 160, 3)
    with pytest.raises(ValueError, match=f'choose one of .*{CAMERAS[0]}'):
        scene.render('back')


def test_joints_follow_their_targets_in_radians(scene: Scene) -> None:
    scene.reset(1)
    target = np.array([0.4, -0.2, 0.3, 0.2, -0.3, 1.2])
    for _ in range(50):
        scene.step(target)
    np.testing.assert_allclose(scene.joint_positions_rad(), target, atol=0.1)
    assert scene.time_s == pytest.approx(50 * CONTROL_PERIOD_S)


def test_targets_beyond_the_limits_are_clipped_and_nonsense_is_refused(scene: Scene) -> None:
    scene.reset(1)
    scene.command(np.full(6, 9.0))
    np.testing.assert_allclose(scene.commanded_rad(), scene.joint_limits_rad[:, 1], rtol=1e-6)
    with pytest.raises(ValueError, match='6 finite radians'):
        scene.command(np.array([0.0, 0.0, np.nan, 0.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match='shoulder_pan'):
        scene.command(np.zeros(5))


def test_time_below_a_physics_step_is_carried_over(scene: Scene) -> None:
    scene.reset(1)
    for _ in range(10):
        scene.advance(0.001)
    assert scene.time_s == pytest.approx(0.01)


def test_the_expert_places_the_cube(scene: Scene) -> None:
    expert = ScriptedExpert(scene)
    for seed in (3, 4):
        scene.reset(seed)
        expert.reset()
        assert not scene.success()
        for _ in range(400):
            scene.step(expert.act())
            if scene.success():
                break
        assert scene.success()
        assert np.linalg.norm(scene.cube_m()[:2] - scene.goal_m[:2]) < 0.03
