"""Compares a caller's connection with the file of a store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache

from perdure.errors import InvalidCall, PerdureError, StoreError
from perdure.storage.database_identity import DatabaseIdentity, Rows, Unsafe

from .connection.database_file import DatabaseFile
from .connection.driver import BUSY, LOCKED, DriverName
from .queries import load

SYNCED = 2  # PRAGMA synchronous=FULL


@cache
def _question() -> str:
    return load("database_identity")["which_file"]


@dataclass(frozen=True)
class SqliteIdentity(DatabaseIdentity):
    """A file, and the library that this process uses it with."""

    file: DatabaseFile
    driver: DriverName
    question: str = field(default_factory=_question)

    dialect = "sqlite"
    once = False  # a pragma may change at any time, and asking costs no round trip

    def __str__(self) -> str:
        return str(self.file)

    def refuse(self, driver: object) -> None:
        theirs = type(driver).__module__.partition(".")[0]
        if theirs in ("sqlite3", "apsw") and theirs != self.driver:
            raise InvalidCall(
                f"connection= is of {theirs}, the app's store uses {self.driver}: two SQLite libraries in one process break "
                f"each other's locks on one file. Use a connection of {self.driver}, or the URL of the other driver"
            )

    def mismatch(self, answer: Rows) -> str | None:
        theirs = str(answer[0][0]) if answer and answer[0][0] else ":memory:"
        return None if self._is_here(theirs) else theirs

    def check(self, answer: Rows) -> Unsafe | None:
        if answer[0][1] >= SYNCED:
            return None
        return Unsafe("PRAGMA synchronous below FULL", "the power fails", "run PRAGMA synchronous=FULL on it")

    def explain(self, error: BaseException) -> PerdureError:
        text = str(error)
        code = getattr(error, "sqlite_errorcode", getattr(error, "result", None))
        if "no such table" in text or "no such column" in text or "has no column" in text:
            return StoreError(
                f"the database behind connection= has not the tables of this version ({text}): run `perdure migrate` once"
            )
        if (isinstance(code, int) and code & 0xFF in (BUSY, LOCKED)) or "is locked" in text:
            return StoreError(
                f"the database behind connection= is busy ({text}): begin with BEGIN IMMEDIATE, because a transaction that "
                "has read first cannot wait for the write lock; roll back and repeat"
            )
        if type(error).__name__ in ("ProgrammingError", "ThreadingViolationError"):
            return InvalidCall(
                f"connection= cannot be used from here: {text}; enqueue where the connection lives, "
                "with the blocking form (task.sync.enqueue) in synchronous code"
            )
        return StoreError(f"the enqueue on connection= failed: {type(error).__name__}: {text}")

    def _is_here(self, theirs: str) -> bool:
        try:
            return self.file.path is not None and os.path.samefile(theirs, self.file.path)
        except OSError:
            return False
