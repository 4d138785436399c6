"""Fixtures for tests that run on every kind of store: the same cases, the same outcome."""

from __future__ import annotations

import pytest

from perdure import Perdure

from .addresses import OF_EACH_KIND, address

STORES = ["memory", "sqlite", *OF_EACH_KIND]
# `async def` handlers on every store; where a handler runs is no concern of the store
ON_STORES = pytest.mark.parametrize(
    ("store", "kind"), [*((store, "async") for store in STORES), ("memory", "def")], indirect=["store"]
)


@pytest.fixture(params=STORES)
def store(request):
    return request.param


@pytest.fixture
def app(store, tmp_path):
    return Perdure(address(store, tmp_path))
