"""The rqt perspective opens plugins with fields that the report has."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('rclpy', reason='the ROS 2 wheels are not installed')

from physis_ros.msg import StreamReport

REPORT = '/wam_node/stream_report/'


@pytest.fixture
def plugins(repository: Path) -> dict[str, Any]:
    """The settings of each plugin that the perspective opens."""
    perspective = json.loads((repository / 'config' / 'physis.perspective').read_text())
    manager = perspective['groups']['pluginmanager']
    running = value(manager['keys']['running-plugins'])
    names = [f'plugin__{name.replace("/", "__")}__{serial}'
             for name, serials in running.items() for serial in serials]
    assert set(names) <= manager['groups'].keys()
    return {name: manager['groups'][name]['groups'] for name in names}


def value(entry: dict[str, str]) -> Any:
    """A setting as rqt reads it."""
    return ast.literal_eval(entry[entry['type']])


def test_diagnostics_are_shown(plugins: dict[str, Any]) -> None:
    assert 'plugin__rqt_runtime_monitor__RuntimeMonitor__1' in plugins


def test_every_plotted_field_is_a_number_of_the_report(plugins: dict[str, Any]) -> None:
    fields = StreamReport.get_fields_and_field_types()
    plotted = [topic for name, groups in plugins.items() if '__rqt_plot__' in name
               for topic in value(groups['plugin']['keys']['topics'])]
    assert {f'{REPORT}replan_hz', f'{REPORT}age_p99_s', f'{REPORT}on_time_ratio'} <= set(plotted)
    for topic in plotted:
        assert topic.startswith(REPORT)
        assert fields[topic.removeprefix(REPORT)] in ('double', 'uint32', 'uint64')
