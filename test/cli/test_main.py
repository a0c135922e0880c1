"""The `physis` command: dispatch, plugins and the manners of its errors."""

import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

import pytest

from physis_core.cli import commands
from physis_core.cli.main import main
from physis_core.errors import InputError, Refused


@pytest.fixture
def plugin(monkeypatch):
    """A command `sing` of another package, and what it was called with."""
    module = ModuleType('choir')
    module.add_arguments = lambda parser: parser.add_argument('--loud', action='store_true')
    module.run = lambda args: 7 if args.loud else 0
    monkeypatch.setitem(sys.modules, 'choir', module)
    offer(monkeypatch, 'sing', 'choir')
    return module


def offer(monkeypatch, name, module):
    entries = [SimpleNamespace(name=name, value=module)]
    monkeypatch.setattr(metadata, 'entry_points', lambda group: entries)


def complaint(capsys):
    """The one sentence on stderr."""
    out, err = capsys.readouterr()
    assert out == ''
    assert err.startswith('physis: ') and err.count('\n') == 1
    return err


def test_help_lists_commands_of_every_package(plugin, capsys):
    assert main(['--help']) == 0
    listed = capsys.readouterr().out
    assert 'capacity' in listed and 'sing' in listed


def test_runs_a_plugin_with_its_own_options(plugin):
    assert main(['sing', '--loud']) == 7


def test_a_plugin_cannot_replace_a_command_of_the_engine(monkeypatch):
    offer(monkeypatch, 'plan', 'choir')
    assert commands.command_modules()['plan'] == 'physis_core.cli.plan'


def test_unknown_command(capsys):
    assert main(['dance']) == 2
    assert '`dance`' in complaint(capsys)


def test_unknown_option_is_one_sentence(plugin, capsys):
    assert main(['sing', '--high']) == 2
    assert '--high' in complaint(capsys)


@pytest.mark.parametrize('missing, advice', [
    ('mujoco', "pip install 'physis-ros[demo]'"),
    ('rclpy.node', "pip install 'physis-ros[ros]'"),
    ('nowhere', 'which is not installed'),
])
def test_missing_extra_is_named(monkeypatch, capsys, missing, advice):
    def refuse(name):
        raise ModuleNotFoundError(f'No module named {missing!r}', name=missing)
    offer(monkeypatch, 'sing', 'choir')
    monkeypatch.setattr(commands.importlib, 'import_module', refuse)
    assert main(['sing']) == 2
    assert advice in complaint(capsys)


def test_missing_extra_at_run_time_is_named(plugin, capsys):
    def run(args):
        raise ModuleNotFoundError("No module named 'matplotlib'", name='matplotlib')
    plugin.run = run
    assert main(['sing']) == 2
    assert '[plot]' in complaint(capsys)


@pytest.mark.parametrize('error, code', [(InputError('1 is\ntoo few'), 2), (Refused('full'), 1)])
def test_errors_are_one_sentence(plugin, capsys, error, code):
    def run(args):
        raise error
    plugin.run = run
    assert main(['sing']) == code
    assert complaint(capsys)


def test_bench_finds_modules_by_file_name(monkeypatch, capsys):
    assert main(['bench', 'nothing']) == 2
    assert 'bench `nothing` is not known' in complaint(capsys)
