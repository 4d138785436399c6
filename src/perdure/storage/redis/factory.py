"""What store addresses need of this store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.storage.migrations import Migration

from .address import Address
from .schema import RedisLedger, load_migrations
from .store import RedisStorage


def storage(address: Address, **options: Any) -> RedisStorage:
    """The store of a checked address."""
    return RedisStorage(address, **options)


def open_ledger(address: Address) -> tuple[RedisLedger, list[Migration], Callable[[], None]]:
    """Where the format of the keys is noted."""
    ledger = RedisLedger(address)
    return ledger, load_migrations(address), ledger.close
