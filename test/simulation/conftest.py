"""Hypothesis does not time what it runs."""

from hypothesis import settings

settings.register_profile('untimed', deadline=None, max_examples=50)
settings.load_profile('untimed')
