"""Frames of one beat are put together, and nobody waits for a camera that beats slower or not."""

from __future__ import annotations

import numpy as np
import pytest

from physis_ros.ingest.observation import Assembler
from physis_ros.ingest.source import Source

MS = 1_000_000
PERIOD = 33 * MS
NEVER_STALE = 10**12


class Cameras:
    def __init__(self) -> None:
        self.front = Source('front', NEVER_STALE, 0)
        self.wrist = Source('wrist', NEVER_STALE, 0)
        self._assembler = Assembler([self.front, self.wrist], [])

    def frame(self, source: Source, capture_ns: int) -> int | None:
        """The capture time of the observation that this frame makes, if it makes one."""
        source.take(np.zeros(1, np.uint8), capture_ns, capture_ns)
        made = self._assembler.observation(capture_ns)
        return None if made is None else made.capture_ns


@pytest.fixture
def cameras() -> Cameras:
    return Cameras()


def test_cameras_that_beat_together_make_one_observation_a_beat(cameras: Cameras) -> None:
    for beat in range(1, 10):
        assert cameras.frame(cameras.front, beat * PERIOD) is None
        assert cameras.frame(cameras.wrist, beat * PERIOD) == beat * PERIOD


def test_pairs_that_start_one_frame_apart_come_together(cameras: Cameras) -> None:
    """As after a reset that falls between the two frames of a beat."""
    cameras.frame(cameras.wrist, 1 * PERIOD)
    made = []
    for beat in range(2, 12):
        for source in (cameras.front, cameras.wrist):
            made.append(cameras.frame(source, beat * PERIOD))
    assert made[-8:] == [made for beat in range(8, 12) for made in (None, beat * PERIOD)]


def test_cameras_with_a_fixed_offset_keep_their_rate(cameras: Cameras) -> None:
    offset_ns = PERIOD // 2
    made = 0
    for beat in range(1, 31):
        made += cameras.frame(cameras.front, beat * PERIOD) is not None
        made += cameras.frame(cameras.wrist, beat * PERIOD + offset_ns) is not None
    assert made >= 29


def test_a_camera_that_stops_does_not_stop_the_other(cameras: Cameras) -> None:
    for beat in range(1, 4):
        cameras.frame(cameras.front, beat * PERIOD)
        cameras.frame(cameras.wrist, beat * PERIOD)
    made = [cameras.frame(cameras.front, beat * PERIOD) for beat in range(4, 14)]
    assert sum(capture_ns is not None for capture_ns in made) == 5
