"""How Hypothesis draws its examples: the same ones in every run, or with `--explore` fresh ones, and more of them.

A run that fails must fail again when it is repeated, and for a change that has nothing to do with it no run may fail. So
only whoever explores gets fresh examples. A failure there prints the line that repeats it.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

FACTOR = int(os.environ.get("PERDURE_EXPLORE") or 20)
_factor = 1

settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.register_profile(
    "explore", derandomize=False, database=None, deadline=None, print_blob=True, max_examples=100 * FACTOR
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--explore", action="store_true", help="fresh examples for Hypothesis, and more of them")


def pytest_configure(config: pytest.Config) -> None:
    global _factor
    exploring = config.getoption("explore")
    settings.load_profile("explore" if exploring else "fixed")
    _factor = FACTOR if exploring else 1


def examples(count: int) -> settings:
    """Settings for a test that tries this many examples; with `--explore` so many times more."""
    return settings(max_examples=count * _factor)
