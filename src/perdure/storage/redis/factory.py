"""Makes a store, or the ledger of its migrations, for a checked address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.storage.migrations import Migration

from .address import Address
from .schema import RedisLedger, load_migrations
from .store import RedisStorage


def storage(address: Address, **options: Any) -> RedisStorage:
    """Make the store of an address; `open` connects it."""
    return RedisStorage(address, **options)


def open_ledger(address: Address) -> tuple[RedisLedger, list[Migration], Callable[[], None]]:
    """The ledger that holds the number of the format, the migrations, and what closes it."""
    ledger = RedisLedger(address)
    return ledger, load_migrations(address), ledger.close
