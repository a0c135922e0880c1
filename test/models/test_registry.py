"""A model is one of ours or a module of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from physis_core.errors import InputError
from physis_core.models.registry import ModelSpec, describe, model_names

OWN = """
from physis_core.models.registry import ModelSpec, describe as of

def describe(options):
    return of(ModelSpec('dit', options))

def build(options, blocks):
    raise NotImplementedError
"""


def test_ours_go_by_name() -> None:
    assert 'so101' in model_names()
    assert describe(ModelSpec('so101')).name == 'so101'


def test_a_module_of_the_users_goes_by_its_dotted_name(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'their_robot').mkdir()
    (tmp_path / 'their_robot' / 'policy.py').write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    spec = ModelSpec.from_json(ModelSpec('their_robot.policy').to_json())
    assert describe(spec) == describe(ModelSpec('dit'))


def test_a_module_in_one_file_needs_no_dot_and_says_what_it_lacks(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'their_policy.py').write_text(OWN)
    (tmp_path / 'their_other_policy.py').write_text('import not_installed_here')
    monkeypatch.syspath_prepend(tmp_path)
    assert describe(ModelSpec('their_policy')) == describe(ModelSpec('dit'))
    with pytest.raises(InputError, match="No module named 'not_installed_here'; install it"):
        describe(ModelSpec('their_other_policy'))


@pytest.mark.parametrize(('name', 'text'), [
    ('nonesuch', 'choose one of .*so101.*, or give the name of a module'),
    ('no.such.module', 'is not known; choose one of'),
    ('wan2.1-1.3b', 'is not known; choose one of'),
    ('', 'model `` is not known'),
    ('email.message', 'has no `describe`'),
    ('json', 'has no `describe`'),
])
def test_what_is_no_model_is_refused(name: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        describe(ModelSpec(name))
