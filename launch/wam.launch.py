"""Starts the policy beside a robot: `ros2 launch physis_ros wam.launch.py`.

The processes are those of `physis_ros.deployment`, so what the demo shows is what starts here.
Parameters live in the file that `config` names; arguments are for what differs between places.
"""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from physis_core.errors import InputError
from physis_ros.deployment import (
    NodeProcess,
    dds_environment,
    policy_processes,
    simulated_robot_processes,
)
from physis_ros.share import share_dir

ROBOTS = ['none', 'sim']
ARGUMENTS = (
    ('config', str(share_dir() / 'config' / 'wam.yaml'), 'parameters of both nodes', None),
    ('robot', 'none', 'sim: start the simulated arm too', ROBOTS),
    ('namespace', '', 'namespace of wam_node and servo_node', None),
    ('use_sim_time', 'false', 'stamps follow /clock', ['true', 'false']),
    ('autostart', 'true', 'configure and activate wam_node at once', ['true', 'false']),
    ('servo_hz', '', 'rate of commands [Hz]; empty: as in the file', None),
    ('lead_ms', '', 'from letting a chunk in to its first point [ms]; empty: as in the file', None),
    ('log_level', 'info', 'of both nodes', ['debug', 'info', 'warn', 'error', 'fatal']),
)


def generate_launch_description() -> LaunchDescription:
    """Arguments, environment, and the processes once the arguments are known."""
    return LaunchDescription([
        *(DeclareLaunchArgument(name, default_value=default, description=text,
                                **({'choices': choices} if choices else {}))
          for name, default, text, choices in ARGUMENTS),
        *(SetEnvironmentVariable(name, value) for name, value in dds_environment().items()),
        OpaqueFunction(function=processes),
    ])


def processes(context):
    """The nodes of the arguments' values."""
    value = {name: LaunchConfiguration(name).perform(context) for name, *_ in ARGUMENTS}
    config = Path(value['config'])
    if not config.is_file():
        raise InputError(f'argument `config` is `{config}`, which is not a file; give the path of '
                         'a parameter file, or leave it out')
    # Whatever is typed on a command line is a text; the type is said here, or `500` would reach
    # a node as a whole number and `true` as a word.
    shared = {'use_sim_time': value['use_sim_time'] == 'true'}
    own = {
        'wam_node': {**shared, 'autostart': value['autostart'] == 'true',
                     **number('lead_ms', value)},
        'servo_node': {**shared, **number('servo_hz', value)}}
    nodes = [node(process, value, own[process.node], value['namespace'])
             for process in policy_processes(config)]
    if value['robot'] == 'sim':
        nodes += [node(process, value, shared, '') for process in simulated_robot_processes()]
    return nodes


def number(name, value):
    """The parameter of an argument that is a number; nothing where it was left empty."""
    if not value[name]:
        return {}
    try:
        return {name: float(value[name])}
    except ValueError:
        raise InputError(f'argument `{name}` is `{value[name]}`, which is not a number') from None


def node(process: NodeProcess, value, parameters, namespace):
    """One process as an action."""
    return Node(
        package='physis_ros', executable=process.executable, name=process.node,
        namespace=namespace, output='screen',
        parameters=[*map(str, process.parameter_files), {**process.parameters, **parameters}],
        arguments=['--ros-args', '--log-level', value['log_level']])
