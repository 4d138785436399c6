"""Limits under test hold on one store of each kind; older servers are held to them by the conformance cases."""

from __future__ import annotations

import pytest

from perdure import Perdure

from ..addresses import OF_EACH_KIND, address

STORES = ["memory", "sqlite", *OF_EACH_KIND]


@pytest.fixture(params=STORES)
def store(request):
    return request.param


@pytest.fixture
def app(store, tmp_path):
    return Perdure(address(store, tmp_path))
