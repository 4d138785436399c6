"""Tests of the SQLite store."""

import pytest

from perdure.storage.rules import fast_path


@pytest.fixture(params=["fast paths", "general paths"])
def both_paths(request, monkeypatch):
    """Run a test with the fast paths of the store, and without them."""
    monkeypatch.setattr(fast_path, "enabled", lambda: request.param == "fast paths")
