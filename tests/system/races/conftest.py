"""The same scenes and processes as the crash tests, with roles that race each other."""

from __future__ import annotations

import pytest

from ..crashes import conftest as crashes
from ..crashes.nursery import Nursery

chance = crashes.chance
no_child_left = crashes.no_child_left
scene = crashes.scene
scheme = crashes.scheme


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery("tests.system.races.roles")
    yield nursery
    nursery.close()


@pytest.fixture
def prepared(nursery, scene):
    """A scene whose file is made and whose every move is written down."""
    arguments = dict(url=scene.url, history=scene.history, watch=True)
    nursery.start("prepare", scene.output("prepare"), **arguments).finish()
    return scene
