"""The launch file starts what the demo starts, with typed arguments."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import launch_stand_ins as launch
import pytest


@pytest.fixture
def description(monkeypatch: pytest.MonkeyPatch, repository: Path) -> ModuleType:
    if importlib.util.find_spec('launch_ros'):
        pytest.skip('the real launch_ros is here: test_real_launch covers it')
    launch.install(monkeypatch)
    return load(repository)


def load(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        'wam_launch', repository / 'launch' / 'wam.launch.py')
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def started(module: ModuleType, **arguments: str) -> dict[str, launch.Node]:
    """The nodes that start with these arguments, by name."""
    entities = module.generate_launch_description().entities
    context = {entity.name: entity.options['default_value'] for entity in entities
               if isinstance(entity, launch.DeclareLaunchArgument)}
    assert arguments.keys() <= context.keys()
    (function,) = [entity for entity in entities if isinstance(entity, launch.OpaqueFunction)]
    nodes = function.options['function']({**context, **arguments})
    return {node.options['name']: node for node in nodes}


def parameters(node: launch.Node) -> dict[str, object]:
    return node.options['parameters'][-1]


def test_policy_and_servo_start_with_the_documented_file(description: ModuleType,
                                                         repository: Path) -> None:
    nodes = started(description)
    assert set(nodes) == {'wam_node', 'servo_node'}
    for name, node in nodes.items():
        assert node.options['executable'] == name
        assert node.options['parameters'][0] == str(repository / 'config' / 'wam.yaml')


def test_the_simulated_robot_starts_where_asked_for(description: ModuleType) -> None:
    assert set(started(description, robot='sim')) == {
        'wam_node', 'servo_node', 'so101', 'arm_controller'}


def test_what_is_typed_arrives_in_its_type(description: ModuleType) -> None:
    nodes = started(description, servo_hz='500', lead_ms='80', autostart='false',
                    use_sim_time='true')
    servo, wam = parameters(nodes['servo_node']), parameters(nodes['wam_node'])
    assert isinstance(servo['servo_hz'], launch.ParameterValue)
    assert servo['servo_hz'].arguments == ('500',)
    assert servo['servo_hz'].options == {'value_type': float}
    assert wam['lead_ms'].options == {'value_type': float}
    assert wam['autostart'].options == {'value_type': bool}
    assert servo['use_sim_time'].options == {'value_type': bool}


def test_the_file_rules_where_nothing_is_typed(description: ModuleType) -> None:
    nodes = started(description)
    assert 'servo_hz' not in parameters(nodes['servo_node'])
    assert 'lead_ms' not in parameters(nodes['wam_node'])


def test_a_namespace_moves_policy_and_servo(description: ModuleType) -> None:
    nodes = started(description, namespace='left', robot='sim')
    assert nodes['wam_node'].options['namespace'] == 'left'
    assert nodes['so101'].options['namespace'] == ''


def test_images_find_room_in_shared_memory(description: ModuleType, repository: Path) -> None:
    variables = dict(entity.arguments
                     for entity in description.generate_launch_description().entities
                     if isinstance(entity, launch.SetEnvironmentVariable))
    profile = Path(variables['FASTDDS_DEFAULT_PROFILES_FILE'])
    assert profile == repository / 'config' / 'fastdds_shm.xml' and profile.is_file()


def test_real_launch(repository: Path) -> None:
    """Where ROS is installed: the description is accepted by the real thing."""
    real = pytest.importorskip('launch')
    pytest.importorskip('launch_ros')
    description = load(repository).generate_launch_description()
    assert isinstance(description, real.LaunchDescription)
