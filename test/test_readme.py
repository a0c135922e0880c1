"""The examples of README.md and docs/ run as they are printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from physis_core.cli.main import main
from physis_core.planning.profile import BatchTimes, Profile

TREE = Path(__file__).parents[1]
MOST_LINES = 28


def examples(document: str, heading: str) -> list[str]:
    """The Python code under a heading."""
    text = (TREE / document).read_text(encoding='utf-8')
    section = text.split(f'\n## {heading}\n', 1)[1].split('\n## ', 1)[0]
    return re.findall(r'```python\n(.*?)```', section, re.DOTALL)


def output_of(script: Path) -> str:
    """What a script prints, run in its folder."""
    done = subprocess.run([sys.executable, script.name], cwd=script.parent, text=True, timeout=120,
                          capture_output=True, env={**os.environ, 'PYTHONPATH': str(TREE)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_own_model_runs_is_the_oracle_and_can_be_planned_with(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, script = examples('README.md', 'Your own model')
    assert len(model.splitlines()) <= MOST_LINES
    (tmp_path / 'my_model.py').write_text(model)
    (tmp_path / 'run.py').write_text(script)
    assert [float(number) for number in re.findall(r'\d+\.\d+', output_of(tmp_path / 'run.py'))
            ] == [0.0] * 5

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.delitem(sys.modules, 'my_model', raising=False)
    assert main(['profile', 'my_model', '--bmax', '2', '--repeats', '5', '--device', 'cpu',
                 '--out', 'my.json']) == 0
    capsys.readouterr()
    assert main(['plan', 'my_model', '--profile', 'my.json', '--devices', '2', '--json']) == 0
    plans = json.loads(capsys.readouterr().out.splitlines()[-1])['2']['front']
    assert {'wave', 'full_split'} <= {plan['mode'] for plan in plans}
    assert main(['pareto', 'my_model', '--profile', 'my.json', '--devices', '1,2']) == 0
    sys.modules.pop('my_model', None)


def test_the_front_door_of_the_serving_document_opens(tmp_path: Path) -> None:
    code, = examples('docs/serving.md', 'Opening a stream')
    (tmp_path / 'serve.py').write_text(code)
    assert main(['profile', 'so101', '--bmax', '2', '--blocks', '1', '--repeats', '5',
                 '--device', 'cpu', '--out', str(tmp_path / 'so101.json')]) == 0
    # A busy machine must not decide what is admitted: the times are given, not those measured.
    path = tmp_path / 'so101.json'
    profile = Profile.load(path)
    times = BatchTimes((250, 350), (250, 350), (300, 400))
    path.write_text(replace(profile, groups=tuple(
        replace(group, times=times) for group in profile.groups)).to_json())
    assert output_of(tmp_path / 'serve.py') == ''


def test_what_behaviour_quotes_is_said_and_its_parameters_are_there() -> None:
    text = (TREE / 'docs' / 'behaviour.md').read_text(encoding='utf-8')
    rows = [row.split(' | ') for row in text.split('\n## ', 1)[0].splitlines()
            if row.startswith('| ')][1:]
    assert len(rows) > 12 and {len(row) for row in rows} == {4}
    sources = '\n'.join(file.read_text(encoding='utf-8')
                        for room in ('physis_ros', 'physis_core/runtime')
                        for file in sorted((TREE / room).rglob('*.py')))
    parameters = (TREE / 'config' / 'wam.yaml').read_text(encoding='utf-8')
    for _, _, says, named in rows:
        for words in re.findall(r'"(.*?)"', says):
            assert words in sources, words
        for name in re.findall(r'`(.*?)`', named):
            last = name.rpartition('.')[2]
            assert re.search(rf'^ +{last}:', parameters, re.MULTILINE), name


def test_the_tests_that_behaviour_is_shown_by_are_there() -> None:
    named = re.findall(r'`(test_\w+\.py)::(test_\w+)`',
                       (TREE / 'docs' / 'behaviour.md').read_text(encoding='utf-8'))
    assert len(named) > 20
    for file, test in named:
        text = (TREE / 'test' / 'physis_ros' / file).read_text(encoding='utf-8')
        assert f'\ndef {test}(' in text, f'{file}::{test}'
