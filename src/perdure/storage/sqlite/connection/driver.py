"""One interface for the two SQLite libraries: the standard library's `sqlite3`, and apsw, which brings its own, newer
SQLite.

Both release the interpreter's lock at every step of a statement, and a busy program takes 5 ms to give it back. So the store
runs few statements with many rows each (VALUES lists in, one JSON text out), never one statement per row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, Protocol

from perdure.errors import StoreError
from perdure.storage.install_hint import install_command

BUSY, LOCKED, READONLY, INTERRUPT, IOERR, CORRUPT = 5, 6, 8, 9, 10, 11
FULL, CANTOPEN, TOOBIG, NOTADB = 13, 14, 18, 26
MOVED = 1032  # a kind of READONLY, and the only extended code that is kept
STATEMENTS_KEPT = 256

DriverName = Literal["sqlite3", "apsw"]
Parameters = Sequence[Any] | Mapping[str, Any]  # of a statement with `?`, or with `:name`


class Connection(Protocol):
    """An open connection. Transactions are the caller's own BEGIN and COMMIT."""

    raw: Any

    def rows(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""

    def value(self, statement: str, parameters: Parameters = ()) -> Any:
        """The first column of the only row."""

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        """Run a statement that writes; returns how many rows it changed."""

    def in_transaction(self) -> bool: ...

    def close(self) -> None: ...


class Driver(Protocol):
    name: DriverName
    error: type[Exception]
    version: tuple[int, int, int]

    def connect(self, path: str) -> Connection: ...

    def code(self, error: Exception) -> int:
        """SQLite's primary result code of an error, 0 when it has none."""


@cache
def driver(name: DriverName) -> Driver:
    return _Standard() if name == "sqlite3" else _Apsw()


class _StandardConnection:
    def __init__(self, path: str) -> None:
        self.raw = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_KEPT
        )

    def rows(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        return self.raw.execute(statement, parameters).fetchall()

    def value(self, statement: str, parameters: Parameters = ()) -> Any:
        return self.raw.execute(statement, parameters).fetchall()[0][0]

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        before = self.raw.total_changes
        self.raw.execute(statement, parameters)
        return self.raw.total_changes - before

    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    def close(self) -> None:
        self.raw.close()


def _code(extended: int) -> int:
    return extended if extended == MOVED else extended & 0xFF


class _Standard:
    name: DriverName = "sqlite3"
    error: type[Exception] = sqlite3.Error
    version = sqlite3.sqlite_version_info

    def connect(self, path: str) -> Connection:
        return _StandardConnection(path)

    def code(self, error: Exception) -> int:
        return _code(int(getattr(error, "sqlite_errorcode", 0)))


class _ApswConnection:
    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def rows(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        return self.raw.execute(statement, parameters).fetchall()  # type: ignore[no-any-return]

    def value(self, statement: str, parameters: Parameters = ()) -> Any:
        return self.raw.execute(statement, parameters).fetchall()[0][0]

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        before = self.raw.total_changes()
        self.raw.execute(statement, parameters)
        return self.raw.total_changes() - before  # type: ignore[no-any-return]

    def in_transaction(self) -> bool:
        return self.raw.in_transaction  # type: ignore[no-any-return]

    def close(self) -> None:
        self.raw.close()


class _Apsw:
    name: DriverName = "apsw"

    def __init__(self) -> None:
        try:
            import apsw
        except ImportError:
            raise StoreError(
                f"sqlite+apsw:// needs the package apsw: {install_command('apsw')}, or use sqlite:///"
            ) from None
        self._apsw = apsw
        self.error: type[Exception] = apsw.Error
        major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
        self.version = (major, minor, patch)

    def connect(self, path: str) -> Connection:
        raw = self._apsw.Connection(path, statementcachesize=STATEMENTS_KEPT)
        # else its SQLite plans a statement again whenever a value is bound, which takes longer than a claim
        raw.config(self._apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return _ApswConnection(raw)

    def code(self, error: Exception) -> int:
        return _code(int(getattr(error, "extendedresult", 0)))
