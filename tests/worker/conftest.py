"""Workers under test run on memory and on SQLite: the same cases, the same outcome."""

from __future__ import annotations

import pytest

from holdfast import Holdfast


@pytest.fixture(params=["memory", "sqlite"])
def app(request, tmp_path):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    return Holdfast(url)
