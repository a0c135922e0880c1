"""The ingest of wam_node in a process of its own: prints what it took and what it cost as JSON.

    python -m physis_ros.benches.ingest_subject SECONDS --ros-args -p camera_names:=[...]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import rclpy
import torch
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from physis_core.graph import StageGraph
from physis_core.models.protocol import ModelDescription, TensorSpec
from physis_core.models.registry import ModelSpec
from physis_core.planning.modes import sequential
from physis_core.units import NS_PER_MS, NS_PER_S, OutputSemantics
from physis_ros.benches.sensors_node import STATUS
from physis_ros.ingest.observation import Observation
from physis_ros.ingest.subscriptions import Ingest
from physis_ros.policy import Policy
from physis_ros.steady_time import SteadyTime
from physis_ros.wam_settings import declare_wam_settings

_WARM_UP_S = 2.0
_IMAGE = TensorSpec((64, 64, 3), 'uint8')


def main() -> int:
    """Measure for as long as the first argument says [s]."""
    seconds = float(sys.argv[1])
    torch.set_num_threads(1)
    rclpy.init()
    node = Node('ingest')
    settings = declare_wam_settings(node)
    policy = _policy(settings['camera_names'], tuple(settings['joints.names']))
    ages_ns: list[int] = []
    sent: dict[str, int] = {}

    def observed(observation: Observation) -> None:
        ages_ns.append(time.monotonic_ns() - observation.capture_ns)

    def count_sent(message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == STATUS:
                sent.update({value.key: int(value.value) for value in status.values})

    ingest = Ingest(node, settings, policy, SteadyTime(node.get_clock(), 1e6), observed)
    node.create_subscription(DiagnosticArray, '/diagnostics', count_sent, 10)
    ingest.active = True
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    _spin(executor, time.monotonic_ns() + round(_WARM_UP_S * NS_PER_S),
          lambda: bool(ages_ns) and bool(sent))
    before, taken, cpu_s, begin_ns = (
        dict(sent), _received(ingest), time.process_time(), time.monotonic_ns())
    ages_ns.clear()
    _spin(executor, begin_ns + round(seconds * NS_PER_S), lambda: True)
    wall_s = (time.monotonic_ns() - begin_ns) / NS_PER_S
    cpu_percent = 100.0 * (time.process_time() - cpu_s) / wall_s
    ages_ms = np.array(ages_ns) / NS_PER_MS
    received = _received(ingest)
    print(json.dumps({
        'seconds': wall_s, 'cpu_percent': cpu_percent,
        'observations_hz': len(ages_ms) / wall_s,
        'capture_to_observation_ms': {
            'p50': float(np.percentile(ages_ms, 50)), 'p99': float(np.percentile(ages_ms, 99))},
        'sources': {name: {'delivered': received[name] - taken[name],
                           'expected': sent[name] - before[name],
                           'delivered_share': (received[name] - taken[name])
                           / max(sent[name] - before[name], 1)}
                    for name in received}}))
    rclpy.try_shutdown()
    return 0


def _spin(executor: SingleThreadedExecutor, end_ns: int, ready: Callable[[], bool]) -> None:
    """Spin until the end, and on until it is ready."""
    while time.monotonic_ns() < end_ns or not ready():
        executor.spin_once(timeout_sec=0.1)


def _received(ingest: Ingest) -> dict[str, int]:
    now_ns = time.monotonic_ns()
    return {source.name: source.health(now_ns).received for source in ingest.assembler.sources}


def _policy(cameras: list[str], joints: tuple[str, ...]) -> Policy:
    """A policy that looks through all cameras; it is never run."""
    graph = StageGraph(1, 1)
    description = ModelDescription(
        name='bench', graph=graph, tokens=1, dim=1, kv_heads=1, head_dim=1,
        latent=TensorSpec((1,)), condition=TensorSpec((1,)),
        observation={**dict.fromkeys(cameras, _IMAGE), 'joints': TensorSpec((len(joints),))},
        outputs={'positions': TensorSpec((8, len(joints)))},
        semantics=OutputSemantics(control_points_per_latent=8, control_period_s=0.02))
    return Policy(ModelSpec('bench'), description, sequential(graph), joints)


if __name__ == '__main__':
    sys.exit(main())
