"""What store addresses need of this store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.storage.migrations import Migration

from .connection import process_shared
from .connection.database_file import DatabaseFile
from .connection.driver import DriverName, driver
from .connection.journal_mode import Keeper
from .connection.writer import patience
from .errors import explained
from .outbox import SqliteOutbox
from .schema import SqliteLedger, load_migrations, load_outbox_migrations
from .store import SqliteStorage


def storage(path: Path | None, scheme: str, *, signals: bool = True, **options: Any) -> SqliteStorage:
    """The store of a checked address."""
    return SqliteStorage(DatabaseFile(path, signals), driver=_driver_of(scheme), **options)


def outbox(path: Path, scheme: str, **options: Any) -> SqliteOutbox:
    """The outbox of a checked address."""
    return SqliteOutbox(DatabaseFile(path), driver=_driver_of(scheme), **options)


def keep(key: str, scheme: str) -> Callable[[], object]:
    """Keep a database in memory while no loop uses it; gives what lets it go."""
    kept = process_shared.take(key, DatabaseFile(None), _driver_of(scheme), "auto")
    return lambda: process_shared.leave(kept)


def open_ledger(
    path: Path, scheme: str, journal: Any, *, outbox: bool = False
) -> tuple[SqliteLedger, list[Migration], Callable[[], None]]:
    """The ledger of a file that is opened for nothing else."""
    place = DatabaseFile(path)
    place.check()
    library = driver(_driver_of(scheme))
    keeper = Keeper(place, library, journal)
    patiently = patience(library)
    connection = None
    try:
        connection = patiently(keeper.connect)
        patiently(keeper.check, connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, library.error):
            raise explained(error, library, place) from error
        raise
    known = load_outbox_migrations() if outbox else load_migrations()
    return SqliteLedger(connection, place, patiently, outbox=outbox), known, connection.close


def _driver_of(scheme: str) -> DriverName:
    return "apsw" if scheme == "sqlite+apsw" else "sqlite3"
