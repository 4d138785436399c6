"""The format of the keys as one noted number, for `perdure migrate` and for opening a store."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from perdure.errors import StoreError
from perdure.storage.migrations import Migration

from .address import Address
from .connection import blocking_client
from .errors import explained
from .keys import Keys

FORMAT = 5  # of keys, rows and bodies


def load_migrations(address: Address) -> list[Migration]:
    """A store has no tables to make: its format is noted, and that is all.

    Format 2 knows limits, edges, shares and the shelf; what format 1 wrote is read as it is. Format 3 counts the holds under
    a limit; those of format 2 are counted when a store is opened. Format 4 keeps the heads of lanes, and format 5 those
    of lines under limits over all queues; both are made when a store without them is opened."""
    meta = Keys(address.prefix)["meta"]
    names = ("format", "limits_edges_shares_shelf", "holds_counted", "heads_of_lanes", "heads_of_lines")
    return [Migration(number, name, f"HSET {meta} format {number}\n") for number, name in enumerate(names, start=1)]


class RedisLedger:
    """Where the format is noted, on a connection of its own."""

    made_of = "keys"

    def __init__(self, address: Address) -> None:
        self._address = address
        self._meta = Keys(address.prefix)["meta"]
        self._client: Any = blocking_client(address)

    def __str__(self) -> str:
        return str(self._address)

    def version(self) -> int:
        noted = self._asked("HGET", self._meta, "format")
        if noted is not None and not noted.isdigit():
            raise StoreError(f"{self}: the key {self._meta} is not Perdure's; choose another prefix with ?prefix=")
        return int(noted or 0)

    def run(self, migration: Migration) -> bool:
        if self.version() >= migration.number:
            return False
        self._asked(*migration.text.split())
        return True

    def close(self) -> None:
        self._client.close()

    def _asked(self, *words: str) -> Any:
        try:
            return self._client.execute_command(*words)
        except RedisError as error:
            raise explained(error, str(self)) from error
