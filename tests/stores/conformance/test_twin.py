"""The twin test: every store answers as the memory store does, whatever it is told."""

from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.exploring import examples

from .stores import LOCAL, STORES
from .twin import failure_of, operations, shortened

SEEDS = st.integers(0, 2**64 - 1)
# hypothesis draws the seeds; a failing list is shortened here, where it is known what a part of it means
SHORT = settings(examples(80), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
ON_A_SERVER = settings(SHORT, max_examples=examples(24).max_examples)  # a round trip for every word
LONG = settings(SHORT, max_examples=5_000, derandomize=False)

pytestmark = pytest.mark.hypothesis  # its tests call functions that Hypothesis runs


@pytest.mark.parametrize("name", STORES)
def test_a_store_answers_as_the_specification_does(name, tmp_path):
    _told_the_same(name, tmp_path, SHORT if name in LOCAL else ON_A_SERVER, 40)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", STORES)
def test_a_store_answers_as_the_specification_does_for_long(name, tmp_path):
    _told_the_same(name, tmp_path, LONG, 120)


def _told_the_same(name, tmp_path, how, length):
    directories = (_made(tmp_path / str(number)) for number in count())

    @how
    @given(SEEDS)
    def told(seed):
        listed = operations(Random(seed), length)
        if failure_of(STORES[name], directories, listed) is None:
            return
        listed = shortened(listed, lambda part: failure_of(STORES[name], directories, part) is not None)
        steps = "\n".join(f"  {operation.name}{operation.arguments}" for operation in listed)
        pytest.fail(f"seed {seed}, after\n{steps}\n{failure_of(STORES[name], directories, listed)}", pytrace=False)

    told()


def _made(directory):
    directory.mkdir()
    return directory
