"""Goals in the user's words."""

import pytest

from physis_core.errors import InputError
from physis_core.planning.slo import SLO, period_from_goal
from physis_core.units import OutputSemantics

MODEL = OutputSemantics(latents_per_chunk=2, frames_per_latent=4, control_points_per_latent=16,
                        control_period_s=0.02)


@pytest.mark.parametrize('goal, period_us', [
    ('10 chunks/s', 100_000), ('80 frames/s', 100_000), ('30 fps', 266_666),
    ('320 control_points/s', 100_000), ('1e1 chunk/s', 100_000)])
def test_period_is_quantity_over_rate(goal, period_us):
    assert period_from_goal(goal, MODEL) == period_us


@pytest.mark.parametrize('goal, says', [
    ('30 Hz', 'unit `Hz` of goal `30 Hz` does not say what is counted'),
    ('30', 'not a number and a unit'), ('0 frames/s', 'positive'), ('1.2.3 fps', 'positive')])
def test_ambiguous_goals_are_refused(goal, says):
    with pytest.raises(InputError, match=says):
        period_from_goal(goal, MODEL)


def test_a_model_without_actions_has_no_control_points():
    with pytest.raises(InputError, match='emits no control points'):
        period_from_goal('50 control_points/s', OutputSemantics(frames_per_latent=4))


def test_limits_are_positive():
    with pytest.raises(InputError, match='period_us of the SLO is 0'):
        SLO(0)
