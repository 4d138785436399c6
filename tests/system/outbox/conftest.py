import pytest

from .scene import Scene

# every kind of outbox with every kind of store, each at least once
PAIRS = [
    ("sqlite", "memory"),
    ("sqlite", "valkey"),
    ("sqlite", "postgres"),
    ("sqlite", "mongo"),
    ("postgres", "valkey"),
    ("postgres", "sqlite"),
]


@pytest.fixture(params=PAIRS, ids="-to-".join)
def pair(request):
    return request.param


@pytest.fixture
def scene(pair, tmp_path):
    return Scene(tmp_path, *pair)


@pytest.fixture(params=["sqlite", "postgres"])
def near(request, tmp_path):
    """Each kind of outbox, with a store in memory."""
    return Scene(tmp_path, request.param, "memory")
