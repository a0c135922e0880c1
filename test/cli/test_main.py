"""The `physis` command: dispatch, plugins and the manners of its errors."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import physis_core
from physis_core.cli import commands
from physis_core.cli.main import main
from physis_core.cli.report import write_text
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


def test_help_says_what_each_command_is_for_and_imports_none(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', 'import sys; from physis_core.cli.main import main; '
         'main(["--help"]); main(["bench"]); sys.exit("torch" in sys.modules)'],
        capture_output=True, text=True, timeout=60, check=True)
    lines = {line.split()[0]: line.split(maxsplit=1) for line in done.stdout.splitlines()
             if line.startswith('  ')}
    assert {*commands.command_modules(), *commands.bench_modules()} <= lines.keys()
    assert all(len(line) == 2 for line in lines.values())
    assert 'Execute a plan' in lines['simulate'][1] and 'roofline' in lines['stage'][1]


def test_version(capsys):
    assert main(['--version']) == 0
    assert capsys.readouterr().out == f'physis {physis_core.__version__}\n'


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
    ('mujoco', "pip install '.[demo]'"),
    ('rclpy.node', "pip install '.[ros]'"),
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


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / 'a plan.json'
    path.write_text('old')
    monkeypatch.setattr(Path, 'replace', lambda *_: (_ for _ in ()).throw(OSError(28, 'full')))
    with pytest.raises(InputError, match=r'cannot be written \(full\); choose another'):
        write_text(path, 'new')
    assert path.read_text() == 'old'
    assert list(tmp_path.iterdir()) == [path]
