"""Keeps connections to the file that a path names now.

SQLite goes on with a file that was removed or replaced: no other process finds what is written there. So before each use,
the file of a connection is compared with the file that the path names.
"""

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
    id: FileId | None


class FileConnections:
    """One connection for each use, opened when it is needed. `prepare` prepares another file for use."""

    def __init__(self, file: DatabaseFile, connect: Callable[[], Connection], prepare: Prepare) -> None:
        self._file = file
        self._connect = connect
        self._prepare = prepare
        self._open: dict[Use, _Open] = {}
        self._last: FileId | None = None  # the file that was in use last

    def get(self, use: Use) -> tuple[Connection, bool]:
        """The connection to the current file, and whether it is new. StoreError if the file was removed: it is not made
        again."""
        opened, current = self._open.get(use), self._file.id()
        if opened is not None and opened.id == current:
            return opened.connection, False
        if current is None and self._last is not None:
            raise StoreError(
                f"{self._file} has been removed while it was in use: put it back, or start anew; "
                "what is written meanwhile would be lost"
            )
        self.close(use)
        connection = self._connect()
        current = self._file.id()
        self._open[use] = _Open(connection, current)
        if self._last not in (None, current):
            self._prepare(connection)
        self._last = current
        return connection, True

    def close(self, use: Use) -> None:
        """Close the connection; the next use opens another."""
        opened = self._open.pop(use, None)
        if opened is not None:
            opened.connection.close()
