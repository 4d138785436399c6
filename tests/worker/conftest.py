"""Workers under test run on every kind of store: the same cases, the same outcome."""

from __future__ import annotations

import pytest

from holdfast import Holdfast

from ..addresses import ON_SERVERS, address


@pytest.fixture(params=["memory", "sqlite", *ON_SERVERS])
def store(request):
    return request.param


@pytest.fixture
def app(store, tmp_path):
    return Holdfast(address(store, tmp_path))
