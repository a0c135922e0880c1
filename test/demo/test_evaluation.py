"""The shipped model in the loop, in lockstep; and how streams are cut from demonstrations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip('physis_ros.demo.expert', reason='needs the extra `demo`')

from physis_core.models.so101 import network
from physis_core.models.so101.network import Network
from physis_core.models.so101.stages import So101Model
from physis_ros.demo.demonstrations import Demonstrations, Episode
from physis_ros.demo.evaluation import Trial, evaluate
from physis_ros.demo.scene import Scene
from physis_ros.demo.training import LEAD_MAX_TICKS, Streams


@pytest.fixture(scope='module')
def scenes() -> Iterator[list[Scene]]:
    built = [Scene() for _ in range(3)]
    yield built
    for scene in built:
        scene.close()


def test_the_shipped_model_moves_cubes_at_one_chunk_of_delay(scenes: list[Scene]) -> None:
    assert evaluate(So101Model(), scenes, Trial(0.16)).success.sum() >= 2


def test_it_is_blind_without_its_cameras(scenes: list[Scene]) -> None:
    assert not evaluate(So101Model(), scenes, Trial(0.16, blank_cameras=True)).success.any()


@pytest.fixture
def demos() -> Demonstrations:
    """Two demonstrations in which joint 0 is the tick and its target is the tick plus 1000."""
    def episode(ticks: int) -> Episode:
        joints = np.zeros((ticks, 6), np.float32)
        joints[:, 0] = np.arange(ticks)
        targets = joints.copy()
        targets[:, 0] += 1000.0
        frames = np.zeros((-(-ticks // 4), 2, 64, 64, 3), np.uint8)
        return Episode(joints, targets, np.zeros((ticks, 5), np.float32), frames)
    return Demonstrations.of([episode(120), episode(150)])


def cut(demos: Demonstrations, start: int, lead: int) -> tuple[torch.Tensor, ...]:
    """Observed ticks, leads in ticks, first due tick of every chunk, and which are alive."""
    streams = Streams(demos, Network(), np.arange(2), chunks=16)
    batch = streams.cut(torch.tensor([1]), torch.tensor([start]), torch.tensor([lead]),
                        jitter=False)
    leads = (batch.leads_s[0] / 0.02).round()
    return batch.joints[0, :, 0], leads, batch.latents[0, :, 0] - 1000.0, batch.alive[0]


def test_a_chunk_holds_the_actions_due_its_lead_after_the_observation(demos: Demonstrations
                                                                     ) -> None:
    for start, lead in ((31, 0), (50, 10), (60, LEAD_MAX_TICKS)):
        observed, leads, due, alive = cut(demos, start, lead)
        assert torch.equal(due[alive], start + 8.0 * torch.arange(16)[alive])
        assert torch.equal((observed + leads)[alive], due[alive])
        assert ((leads - lead).abs() <= 3).all()


def test_a_stream_starts_with_the_arm_held_still_for_the_delay(demos: Demonstrations) -> None:
    observed, leads, due, _ = cut(demos, 0, 16)
    assert observed[:4].tolist() == [0.0, 0.0, 0.0, 8.0]
    assert leads[:4].tolist() == [16.0] * 4
    assert due[:4].tolist() == [0.0, 8.0, 16.0, 24.0]


def test_nothing_is_learned_from_after_the_end(demos: Demonstrations) -> None:
    _, _, due, alive = cut(demos, 100, 4)
    assert alive.tolist() == [chunk < 7 for chunk in range(16)]
    assert due.max() == 149.0


def test_control_points_fill_the_latent(demos: Demonstrations) -> None:
    streams = Streams(demos, Network(), np.arange(2))
    batch = streams.sample(3)
    assert batch.latents.shape == batch.base.shape == (3, 12, network.LATENT)
