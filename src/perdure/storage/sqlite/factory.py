"""Opens what a store URL names: a store, an outbox, or a ledger of migrations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.storage.migrations import Migration

from .connection import process_shared
from .connection.busy import retry_of
from .connection.database_file import DatabaseFile
from .connection.driver import DriverName, driver
from .connection.journal_mode import JournalKeeper
from .errors import explain
from .outbox import SqliteOutbox
from .schema import SqliteLedger, load_migrations, load_outbox_migrations
from .store import SqliteStorage


def storage(path: Path | None, scheme: str, *, signals: bool = True, **options: Any) -> SqliteStorage:
    """The store of a parsed URL."""
    return SqliteStorage(DatabaseFile(path, signals), driver=_driver_of(scheme), **options)


def outbox(path: Path, scheme: str, **options: Any) -> SqliteOutbox:
    """The outbox of a parsed URL."""
    return SqliteOutbox(DatabaseFile(path), driver=_driver_of(scheme), **options)


def keep(key: str, scheme: str) -> Callable[[], object]:
    """Keep a database in memory while no loop uses it; returns a function that releases it."""
    kept = process_shared.acquire(key, DatabaseFile(None), _driver_of(scheme), "auto")
    return lambda: process_shared.release_later(kept)


def open_ledger(
    path: Path, scheme: str, journal: Any, *, outbox: bool = False
) -> tuple[SqliteLedger, list[Migration], Callable[[], None]]:
    """The ledger of a file, its migrations, and a function that closes the file."""
    file = DatabaseFile(path)
    file.check()
    library = driver(_driver_of(scheme))
    keeper = JournalKeeper(file, library, journal)
    retry = retry_of(library)
    connection = None
    try:
        connection = retry(keeper.connect)
        retry(keeper.check, connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, library.error):
            raise explain(error, library, file) from error
        raise
    known = load_outbox_migrations() if outbox else load_migrations()
    return SqliteLedger(connection, file, retry, outbox=outbox), known, connection.close


def _driver_of(scheme: str) -> DriverName:
    return "apsw" if scheme == "sqlite+apsw" else "sqlite3"
