"""Makes PostgreSQL stores from addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.storage.migrations import Migration

from .address import Address, address_of
from .outbox import PostgresOutbox
from .schema import PostgresLedger, load_migrations
from .store import PostgresStorage

__all__ = ["Address", "address_of", "open_ledger", "open_outbox_ledger", "outbox", "storage"]


def storage(address: Address, **options: Any) -> PostgresStorage:
    """The store of a checked address."""
    return PostgresStorage(address, **options)


def open_ledger(address: Address) -> tuple[PostgresLedger, list[Migration], Callable[[], None]]:
    """The ledger of a schema, on a connection of its own."""
    ledger = PostgresLedger(address)
    return ledger, load_migrations(address.schema), ledger.close


def outbox(address: Address, **options: Any) -> PostgresOutbox:
    """The outbox of a checked address."""
    return PostgresOutbox(address, **options)


def open_outbox_ledger(address: Address) -> tuple[PostgresLedger, list[Migration], Callable[[], None]]:
    """The ledger of an outbox, on a connection of its own."""
    ledger = PostgresLedger(address, outbox=True)
    return ledger, load_migrations(address.schema, outbox=True), ledger.close
