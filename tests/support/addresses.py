"""The stores by name, for tests that need no more of a store than its address."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from .real_servers import kinds_with_a_store, server

_FILES = {
    "memory": "memory://",
    "sqlite-in-memory": "sqlite:///:memory:",
    "sqlite": "sqlite:///{folder}/jobs.db",
    "sqlite+apsw": "sqlite+apsw:///{folder}/apsw.db",
}
ON_SERVERS = kinds_with_a_store()
# one server of each kind, for tests of what stands above a store; older ones are held to the same by the conformance cases
OF_EACH_KIND = [kind for kind in ON_SERVERS if kind in ("postgres", "valkey", "mongo")]
NAMES = [*(name for name in _FILES if "apsw" not in name or find_spec("apsw")), *ON_SERVERS]


def address(name: str, folder: Path) -> str:
    """Where a store of this name begins empty."""
    return _FILES[name].format(folder=folder) if name in _FILES else server(name).fresh()
