"""What the node's parameters make run, and on what."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_core.errors import InputError
from physis_core.runtime.engine import EngineOptions
from physis_ros import wam_node
from physis_ros.policy import make_policy
from physis_ros.wam_node import start_engine
from physis_ros.wam_settings import WAM_SETTINGS

DEFAULTS = {setting.name: setting.default for setting in WAM_SETTINGS}


def test_workers_compute_on_the_cpu_unless_told_otherwise() -> None:
    policy = make_policy(DEFAULTS)
    assert (policy.compute, policy.plan.link, policy.plan.devices) == ('cpu', 'shm', 2)


def test_the_engine_is_told_how_long_a_batch_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}
    monkeypatch.setattr(wam_node, 'Engine', lambda spec, plan, options: told.update(
        options=options))
    for stall_s in (DEFAULTS['stall_s'], 0.5):
        start_engine(make_policy({**DEFAULTS, 'stall_s': stall_s}))
        assert told['options'] == EngineOptions(stall_s=stall_s)
    assert DEFAULTS['stall_s'] == EngineOptions().stall_s


def test_workers_on_gpus_hand_on_between_gpus() -> None:
    policy = make_policy({**DEFAULTS, 'compute': 'cuda'})
    assert (policy.compute, policy.plan.link) == ('cuda', 'nccl')
    if torch.cuda.device_count() < 2:
        with pytest.raises(InputError, match=r'2 devices and this host has .* GPUs'):
            start_engine(policy)
