"""The launch file starts what the demo starts, with typed arguments."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import launch_stand_ins as launch
import pytest
import yaml

from physis_core.errors import InputError


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
    assert same(parameters(nodes['servo_node']), {'use_sim_time': True, 'servo_hz': 500.0})
    assert same(parameters(nodes['wam_node']),
                {'use_sim_time': True, 'autostart': False, 'lead_ms': 80.0})


def same(found: dict[str, object], expected: dict[str, object]) -> bool:
    """Whether both are equal, and of equal types: 500 is equal to 500.0."""
    return repr(sorted(found.items())) == repr(sorted(expected.items()))


@pytest.mark.parametrize(('argument', 'complaint'), [
    ({'servo_hz': 'fast'}, 'argument `servo_hz` is `fast`, which is not a number'),
    ({'lead_ms': '80ms'}, 'argument `lead_ms` is `80ms`, which is not a number'),
    ({'config': '/nowhere.yaml'}, 'argument `config` is `/nowhere.yaml`, which is not a file'),
])
def test_a_wrong_argument_starts_nothing(description: ModuleType, argument: dict[str, str],
                                         complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        started(description, **argument)


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
    """Where ROS is installed: the real thing takes the description and writes the parameters."""
    real = pytest.importorskip('launch')
    pytest.importorskip('launch_ros')
    module = load(repository)
    description = module.generate_launch_description()
    context = real.LaunchContext()
    typed = {'servo_hz': '500', 'namespace': 'left', 'robot': 'sim'}
    context.launch_configurations.update(typed)
    for argument in description.get_launch_arguments():
        argument.visit(context)
    nodes = {}
    for node in module.processes(context):
        node._perform_substitutions(context)
        nodes[node.node_name] = written_parameters(node)
    assert set(nodes) == {'/left/wam_node', '/left/servo_node', '/so101', '/arm_controller'}
    assert same(nodes['/left/servo_node'], {'use_sim_time': False, 'servo_hz': 500.0})
    assert same(nodes['/left/wam_node'], {'use_sim_time': False, 'autostart': True})


def written_parameters(node: Any) -> dict[str, object]:
    """What the last parameter file on a node's command line says."""
    words = [''.join(getattr(part, 'text', '') for part in word) for word in node.cmd]
    last = max(index for index, word in enumerate(words) if word == '--params-file')
    (content,) = yaml.safe_load(Path(words[last + 1]).read_text()).values()
    return dict(content['ros__parameters'])
