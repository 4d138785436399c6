"""What the peers have in common: the words about the server's file, and a client that counts their jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .place import address, connected

WRITES = "append-only file, synced every second"
POWER_LOSS = "the last two seconds may be lost"


@contextmanager
def counting(place: Path) -> Iterator[Any]:
    with connected(address(place)) as client:
        yield client


def keys(client: Any, pattern: str) -> int:
    """How many keys there are of a kind."""
    return sum(1 for _ in client.scan_iter(match=pattern, count=10_000))
