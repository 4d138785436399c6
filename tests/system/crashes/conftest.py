"""Scenes on every kind of store, and the nursery of the processes that are killed in them."""

from __future__ import annotations

import importlib.util
import os
import random

import pytest

from tests.support.addresses import OF_EACH_KIND

from .nursery import Nursery
from .recording import Scene

FILES = ["sqlite", *(["sqlite+apsw"] if importlib.util.find_spec("apsw") else [])]
SCHEMES = [*FILES, *OF_EACH_KIND]


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery("tests.system.crashes.roles")
    yield nursery
    nursery.close()


@pytest.fixture(autouse=True)
def no_child_left(request):
    yield
    if "nursery" in request.fixturenames:
        request.getfixturevalue("nursery").clear()


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


@pytest.fixture
def scene(tmp_path, scheme):
    return Scene(tmp_path, scheme)


@pytest.fixture
def chance():
    """Everything random in a test comes from here; PERDURE_SEED repeats a run."""
    seed = int(os.environ.get("PERDURE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PERDURE_SEED={seed}")
    return random.Random(seed)
