"""Profiles that planning tests share."""

import pytest
from hypothesis import settings

from physis_core.models.presets import load_preset
from physis_core.planning.cost import analytic_profile
from physis_core.planning.devices import load_device
from physis_core.planning.profile import given_profile

settings.register_profile('untimed', deadline=None, max_examples=50)
settings.load_profile('untimed')


@pytest.fixture(scope='session')
def wan_profile():
    """Wan2.1 1.3B with t(B) = 0.8 + 2.105 B ms."""
    graph = load_preset('wan2.1-1.3b').graph
    return given_profile('wan2.1-1.3b', graph, [800 + 2105 * batch for batch in range(1, 9)])


@pytest.fixture(scope='session')
def h100_profiles():
    """The five backbones on an H100."""
    return {name: analytic_profile(load_preset(name), load_device('h100'), 8)
            for name in ('wan2.1-1.3b', 'wan2.2-5b', 'wan2.1-14b', 'ltx-2.x', 'h3')}
