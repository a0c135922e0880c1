"""Profiles on disk, and what is refused."""

import json

import pytest
from toy_profiles import affine_profile

from physis_core.errors import InputError
from physis_core.planning.profile import BatchTimes, Profile, given_profile


def test_survives_json():
    profile = affine_profile(4, 6, 100, 20, kv_bytes=7, weight_bytes=9)
    assert Profile.from_json(profile.to_json()) == profile


def changed(**fields):
    return json.dumps({**json.loads(affine_profile(2, 3, 10, 5).to_json()), **fields})


@pytest.mark.parametrize('text, says', [
    ('{', 'is not JSON'),
    ('[]', 'schema version None'),
    (changed(schema=7), 'schema version 7, this is version 1'),
    (changed(modle='x'), 'unknown key `modle`; did you mean `model`'),
    (changed(hop_bytes='many'), "`hop_bytes` is 'many'; it must be a whole number"),
    (changed(groups=[]), 'describe 0 blocks, the model has 3'),
    (changed(groups=[{'blocks': 3, 'times': {'mean_us': [1], 'p50_us': [1]}}]), 'p99_us'),
    (changed(groups=[{'blocks': 3, 'times': {'mean': [1]}}]), 'did you mean `mean_us`'),
    (changed(graph={'steps': 2, 'blocks': 3, 'kv_mode': 'lost'}), 'choose one of same_step'),
])
def test_refuses_what_is_not_a_profile(text, says):
    with pytest.raises(InputError, match=says):
        Profile.from_json(text)


def test_refuses_a_profile_of_another_device(tmp_path):
    path = tmp_path / 'profile.json'
    path.write_text(affine_profile(2, 3, 10, 5).to_json())
    assert Profile.load(path, 'given').model == 'toy'
    with pytest.raises(InputError, match='made for device `given`, not `h200`; measure'):
        Profile.load(path, 'h200')
    with pytest.raises(InputError, match='cannot be read'):
        Profile.load(tmp_path / 'nothing.json')


def test_times_never_fall_with_the_batch():
    with pytest.raises(InputError, match='never fall'):
        BatchTimes((5, 4), (5, 4), (5, 4))


def test_batches_outside_the_profile():
    profile = affine_profile(2, 3, 10, 5, max_batch=4)
    assert profile.with_max_batch(2).max_batch == 2
    for call in (lambda: profile.mean_us(0, 5), lambda: profile.with_max_batch(9),
                 lambda: profile.mean_us(3, 1)):
        with pytest.raises(InputError, match='profile of `toy`'):
            call()


def test_given_times_keep_the_sizes():
    like = affine_profile(2, 3, 10, 5, kv_bytes=7, weight_bytes=9)
    profile = given_profile('toy', like.graph, [1, 2], like=like)
    assert (profile.mean_us(2, 2), profile.groups[0].kv_bytes) == (2, 7)
    assert profile.predict_ns(0, 1) == 1000
