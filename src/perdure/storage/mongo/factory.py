"""Makes the store and its migration ledger from a checked URL. `storage/urls.py` imports this module by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.storage.migrations import Migration

from .address import MongoAddress
from .schema import MongoLedger, connect, load_migrations
from .store import MongoStorage


def storage(address: MongoAddress, **options: Any) -> MongoStorage:
    """The store at a checked address."""
    return MongoStorage(address, **options)


def open_ledger(address: MongoAddress) -> tuple[MongoLedger, list[Migration], Callable[[], None]]:
    """The ledger of a database, with the function that closes it."""
    client = connect(address)
    return MongoLedger(client, address), load_migrations(), client.close
