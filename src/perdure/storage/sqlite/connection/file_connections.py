"""Keeps connections to the file that a path names now.

SQLite goes on with a file that was removed or replaced: no other process finds what is written there. So before each use,
the file of a connection is compared with the file that the path names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from perdure.errors import StoreError

from .database_file import DatabaseFile, FileId
from .driver import Connection

Prepare = Callable[[Connection], None]
Use = Literal["writer", "reader"]


class _Open(NamedTuple):
    connection: Connection
    file: FileId | None


class FileConnections:
    """One connection for each use, opened when it is needed. `prepare` makes another file fit for use."""

    def __init__(self, place: DatabaseFile, connect: Callable[[], Connection], prepare: Prepare) -> None:
        self._place = place
        self._connect = connect
        self._prepare = prepare
        self._open: dict[Use, _Open] = {}
        self._known: FileId | None = None  # the file that was in use last

    def get(self, use: Use) -> tuple[Connection, bool]:
        """The connection to the current file, and whether it is new. StoreError if the file was removed: it is not made
        again."""
        opened, file = self._open.get(use), self._place.file()
        if opened is not None and opened.file == file:
            return opened.connection, False
        if file is None and self._known is not None:
            raise StoreError(
                f"{self._place} has been removed while it was in use: put it back, or start anew; "
                "what is written meanwhile would be lost"
            )
        self.close(use)
        connection = self._connect()
        file = self._place.file()
        self._open[use] = _Open(connection, file)
        if self._known not in (None, file):
            self._prepare(connection)
        self._known = file
        return connection, True

    def close(self, use: Use) -> None:
        """Close the connection; the next use opens another."""
        opened = self._open.pop(use, None)
        if opened is not None:
            opened.connection.close()
