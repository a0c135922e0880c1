"""config/ says what the nodes do: every parameter is there, with its default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_ros.parameters import Setting
from physis_ros.servo_settings import SERVO_SETTINGS
from physis_ros.wam_settings import WAM_SETTINGS, camera_settings

# Where the file sets what the code leaves open: limits of the demo's arm.
OPEN = ('limits.lower', 'limits.upper', 'limits.velocity', 'limits.acceleration')
# An empty list has no type in a parameter file, so it stands there as a comment.
NOT_WRITABLE = {'real_time.cpus'}


def flat(tree: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f'{prefix}{key}'
        if isinstance(value, dict):
            found.update(flat(value, f'{name}.'))
        else:
            found[name] = value
    return found


@pytest.mark.parametrize(('node', 'settings'), [
    ('wam_node', (*WAM_SETTINGS, *camera_settings('front'), *camera_settings('wrist'))),
    ('servo_node', SERVO_SETTINGS),
])
def test_the_file_documents_every_parameter_with_its_default(
        repository: Path, node: str, settings: Sequence[Setting]) -> None:
    tree = yaml.safe_load((repository / 'config' / 'wam.yaml').read_text())
    written = flat(tree[f'/**/{node}']['ros__parameters'])
    assert set(written) == {setting.name for setting in settings} - NOT_WRITABLE
    for setting in settings:
        if setting.name in NOT_WRITABLE:
            continue
        value = setting.checked(written[setting.name])
        if setting.name not in OPEN:
            default = setting.default
            assert value == (list(default) if isinstance(default, tuple) else default), setting


UNITS = {'_ms': 'ms', '_hz': 'Hz', '_s': 's', '_c': 'degrees Celsius', 'tolerance': 'rad',
         'deceleration': 'rad/s^2'}


@pytest.mark.parametrize(('node', 'settings'), [
    ('wam_node', (*WAM_SETTINGS, *camera_settings('front'), *camera_settings('wrist'))),
    ('servo_node', SERVO_SETTINGS),
])
def test_the_file_says_the_range_and_the_unit_of_every_number(
        repository: Path, node: str, settings: Sequence[Setting]) -> None:
    comments = comments_of((repository / 'config' / 'wam.yaml').read_text(), node)
    for setting in settings:
        if setting.low is None or setting.high is None:
            continue
        span = f'{plain(setting.low)} to {plain(setting.high)}'
        unit = next((unit for end, unit in UNITS.items() if setting.name.endswith(end)), '')
        assert f'{span} {unit}'.rstrip() in comments[setting.name], setting.name


def plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def comments_of(text: str, node: str) -> dict[str, str]:
    """What stands beside each key of a node, and below it until the next key."""
    found: dict[str, str] = {}
    path: list[str] = []
    inside = False
    for line in text.splitlines():
        content, _, comment = line.partition('#')
        key = re.match(r' *([/*\w]+):', content)
        if key is None:
            if inside and found:
                found[list(found)[-1]] += ' ' + comment.strip()
            continue
        depth = (len(content) - len(content.lstrip())) // 2
        path = [*path[:depth], key[1]]
        if depth == 0:
            inside = key[1] == f'/**/{node}'
        elif inside:
            found['.'.join(path[2:])] = comment.strip()
    return found


def test_every_parameter_is_described() -> None:
    for setting in (*WAM_SETTINGS, *SERVO_SETTINGS, *camera_settings('front')):
        assert setting.description
        assert setting.descriptor().description == setting.description
        if setting.name.endswith(('_ms', '_hz', '_s')):
            assert '[' in setting.description, f'{setting.name} has no unit in its description'
            assert setting.low is not None and setting.high is not None
