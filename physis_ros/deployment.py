"""What runs: the node processes of Physis as plain data.

`launch/wam.launch.py` and `physis demo` both start processes from these descriptions, so what the
demo shows is what a launch file starts. Nothing here imports rclpy or launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from physis_ros.share import share_dir

ParameterValue = bool | int | float | str | list[str]


@dataclass(frozen=True)
class NodeProcess:
    """One process that holds one node.

    Attributes:
        node: name of the node; the keys of the parameter files.
        executable: what `ros2 run physis_ros` and launch files call it.
        module: what `python -m` runs.
        parameter_files: YAML files, later ones win.
        parameters: single parameters, which win over the files.
    """

    node: str
    executable: str
    module: str
    parameter_files: tuple[Path, ...] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)


def policy_processes(
    config: Path | None = None,
    wam: Mapping[str, ParameterValue] | None = None,
    servo: Mapping[str, ParameterValue] | None = None,
) -> tuple[NodeProcess, ...]:
    """What runs beside any robot: the servo that plays control points, and the policy.

    In the order in which they start. The policy comes last, so that it is stopped first.

    Args:
        config: parameters of both nodes; None: `config/wam.yaml`.
        wam: parameters of `wam_node` that win over the file.
        servo: parameters of `servo_node` that win over the file.
    """
    files = (config or share_dir() / 'config' / 'wam.yaml',)
    return (
        NodeProcess('servo_node', 'servo_node', 'physis_ros.servo_node', files, servo or {}),
        NodeProcess('wam_node', 'wam_node', 'physis_ros.wam_node', files, wam or {}),
    )


def simulated_robot_processes(
    robot: Mapping[str, ParameterValue] | None = None,
    controller: Mapping[str, ParameterValue] | None = None,
) -> tuple[NodeProcess, ...]:
    """What stands in for a robot: the arm with its cameras, and the controller that moves it."""
    files = (share_dir() / 'config' / 'demo_robot.yaml',)
    return (
        NodeProcess('so101', 'demo_robot', 'physis_ros.demo.robot_node', files, robot or {}),
        NodeProcess('arm_controller', 'demo_controller', 'physis_ros.demo.controller_node', files,
                    controller or {}),
    )


def dds_environment() -> dict[str, str]:
    """Environment of every process: camera images between processes need larger segments."""
    return {
        'FASTDDS_DEFAULT_PROFILES_FILE': str(share_dir() / 'config' / 'fastdds_shm.xml'),
        'PYTHONUNBUFFERED': '1',
    }
