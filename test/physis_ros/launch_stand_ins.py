"""What wam.launch.py needs of launch and launch_ros, for machines without them.

Each stand-in keeps what it was given; an action does nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest


class Action:
    """Any action or description."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments = arguments
        self.options = options


class LaunchDescription(Action):
    @property
    def entities(self) -> list[Any]:
        return self.arguments[0]


class DeclareLaunchArgument(Action):
    @property
    def name(self) -> str:
        return self.arguments[0]


class SetEnvironmentVariable(Action):
    pass


class OpaqueFunction(Action):
    pass


class Node(Action):
    pass


class LaunchConfiguration(Action):
    def perform(self, context: dict[str, str]) -> str:
        return context[self.arguments[0]]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the stand-ins importable."""
    for name, content in {
        'launch': [LaunchDescription],
        'launch.actions': [DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable],
        'launch.substitutions': [LaunchConfiguration],
        'launch_ros': [],
        'launch_ros.actions': [Node],
    }.items():
        module = ModuleType(name)
        for member in content:
            setattr(module, member.__name__, member)
        monkeypatch.setitem(sys.modules, name, module)
