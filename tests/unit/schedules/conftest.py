"""Schedules under test run on every kind of store, with a clock that is moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from perdure import Perdure
from perdure.testing import ManualClock
from tests.support.addresses import OF_EACH_KIND, address

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite", *OF_EACH_KIND])
def store(request):
    return request.param


@pytest.fixture
def clock():
    return ManualClock(NOON)


@pytest.fixture
def app(store, clock, tmp_path):
    return Perdure(address(store, tmp_path), clock=clock)
