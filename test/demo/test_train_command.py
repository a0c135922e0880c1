"""`physis train so101`, with very short schedules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('physis_ros.demo.expert', reason='needs the extra `demo`')

from physis_core.cli.main import main
from physis_core.models.so101.stages import So101Model
from physis_ros.demo import training
from physis_ros.demo.demonstrations import Demonstrations, Episode
from physis_ros.demo.training import Schedule


def random_demonstrations(episodes: int, ticks: int = 60) -> Demonstrations:
    rng = np.random.default_rng(0)

    def episode() -> Episode:
        return Episode(
            rng.normal(size=(ticks, 6)).astype(np.float32),
            rng.normal(size=(ticks, 6)).astype(np.float32),
            rng.normal(size=(ticks, 5)).astype(np.float32),
            rng.integers(0, 256, (ticks // 4, 2, 64, 64, 3), np.uint8))
    return Demonstrations.of([episode() for _ in range(episodes)])


def test_demonstrations_follow_from_the_seed(tmp_path: Path) -> None:
    for out in (tmp_path / 'one', tmp_path / 'two'):
        assert main(['train', 'so101', '--stage', 'demos', '--episodes', '2', '--seed', '3',
                     '--out', str(out)]) == 0
    one, two = Demonstrations.load(tmp_path / 'one'), Demonstrations.load(tmp_path / 'two')
    assert len(one.ticks) == 2
    np.testing.assert_array_equal(one.targets_rad, two.targets_rad)
    np.testing.assert_array_equal(one.images, two.images)


def test_encoder_and_model_are_trained_from_demonstrations(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, 'ENCODER_SCHEDULE', Schedule(2, 16, 1e-3))
    monkeypatch.setattr(training, 'WAM_SCHEDULE', Schedule(2, 4, 1e-3))
    random_demonstrations(22).save(tmp_path / 'demos-0.npz')
    for stage in ('encoder', 'wam'):
        assert main(['train', 'so101', '--stage', stage, '--out', str(tmp_path)]) == 0
    observation = {'front': np.zeros((64, 64, 3), np.uint8),
                   'wrist': np.zeros((64, 64, 3), np.uint8), 'joints': np.zeros(6, np.float32)}
    condition = So101Model(tmp_path / 'weights.safetensors').encode(observation, 0.1)
    assert condition.isfinite().all()


@pytest.mark.parametrize(('arguments', 'words'), [
    (['--episodes', '1'], 'the least is 2'),
    (['--stage', 'encoder'], 'run the `demos` stage'),
])
def test_what_cannot_be_trained_is_said_in_one_sentence(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(['train', 'so101', '--out', str(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err
