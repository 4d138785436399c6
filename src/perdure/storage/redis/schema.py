"""The format of the keys: one number in the key `meta`, for `perdure migrate` and for opening a store."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from perdure.errors import StoreError
from perdure.storage.migrations import Migration

from .address import Address
from .connection.connection import blocking_client
from .connection.errors import store_error_of
from .keys import Keys

FORMAT = 1  # of keys, rows and bodies: see FORMAT in lua/constants.lua
NAMES = ("format",)  # of the migrations, the first one first


def load_migrations(address: Address) -> list[Migration]:
    """A store has no tables: a migration notes the number of its format, and opening a store brings the keys up to it."""
    meta = Keys(address.prefix)["meta"]
    return [Migration(number, name, f"HSET {meta} format {number}\n") for number, name in enumerate(NAMES, start=1)]


class RedisLedger:
    """Reads and writes the number of the format, on a connection of its own."""

    made_of = "keys"

    def __init__(self, address: Address) -> None:
        self._address = address
        self._meta = Keys(address.prefix)["meta"]
        self._client: Any = blocking_client(address)

    def __str__(self) -> str:
        return str(self._address)

    def version(self) -> int:
        noted = self._execute("HGET", self._meta, "format")
        if noted is not None and not noted.isdigit():
            raise StoreError(f"{self}: the key {self._meta} is not Perdure's; choose another prefix with ?prefix=")
        return int(noted or 0)

    def run(self, migration: Migration) -> bool:
        if self.version() >= migration.number:
            return False
        self._execute(*migration.text.split())
        return True

    def close(self) -> None:
        self._client.close()

    def _execute(self, *words: str) -> Any:
        try:
            return self._client.execute_command(*words)
        except RedisError as error:
            raise store_error_of(error, str(self)) from error
