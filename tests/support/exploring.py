"""How Hypothesis draws its examples: the same ones in every run, or with `--explore` fresh ones, and more of them.
With `--quick` it draws fewer.

A run that fails must fail again when it is repeated, and for a change that has nothing to do with it no run may fail. So
only whoever explores gets fresh examples. A failure there prints the line that repeats it.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

FACTOR = int(os.environ.get("PERDURE_EXPLORE") or 20)
QUICK = 0.2
_factor = 1.0

settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile("quick", settings.get_profile("fixed"), max_examples=round(100 * QUICK))
settings.register_profile(
    "explore", derandomize=False, database=None, deadline=None, print_blob=True, max_examples=100 * FACTOR
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--explore", action="store_true", help="fresh examples for Hypothesis, and more of them")


def pytest_configure(config: pytest.Config) -> None:
    global _factor
    if config.getoption("explore"):
        profile, _factor = "explore", FACTOR
    elif config.getoption("quick"):
        profile, _factor = "quick", QUICK
    else:
        profile, _factor = "fixed", 1.0
    settings.load_profile(profile)


def examples(count: int) -> settings:
    """Settings for a test that tries this many examples; with `--explore` more, with `--quick` fewer."""
    return settings(max_examples=max(1, round(count * _factor)))
