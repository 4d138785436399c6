"""Tells whether a caller's connection leads to the database of the store.

The same server and the same database name are the same database, whatever the address. A server is identified by the
microsecond at which it was started: every role may read it, it is the same through a pooler, a tunnel or a socket, and a
copy of the database on another server has another one. After a restart the store asks again.
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import PerdureError, StoreError
from perdure.storage.database_identity import ABORTED, DatabaseIdentity, Rows, Unsafe

from ..address import Address
from ..queries import load
from .server import Connection

# for these the caller's own loop repeats the transaction, by the error of its own driver
CONFLICTS = ("40001", "40P01")
MISSING = ("42P01", "42703", "3F000")
ABORTED_STATE, FORBIDDEN, READ_ONLY = "25P02", "42501", "25006"


@dataclass(frozen=True)
class PostgresIdentity(DatabaseIdentity):
    """A database by its name and its server's beginning."""

    address: str
    schema: str
    question: str
    database: str
    started: int

    dialect = "postgresql"
    once = True

    def __str__(self) -> str:
        return self.address

    def refuse(self, driver: object) -> None:
        """Any driver of PostgreSQL will do."""

    def mismatch(self, answer: Rows) -> str | None:
        database, started, where = answer[0][:3]
        if (database, int(started)) == (self.database, self.started):
            return None
        another = " on another server" if database == self.database else ""
        return f"the database {database!r}{another} ({where})"

    def check(self, answer: Rows) -> Unsafe | None:
        read_only, commit, allowed = answer[0][3:]
        if read_only == "on":
            raise self._read_only("transaction_read_only is on")
        if allowed is None:
            raise self._missing(f"schema {self.schema} has no tables of Perdure")
        if not allowed:
            raise self._forbidden("it may not insert and select in all tables")
        if commit == "off":
            return Unsafe("synchronous_commit=off", "the server crashes", "run SET synchronous_commit = on on it")
        return None

    def explain(self, error: BaseException) -> PerdureError | None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        message = str(error).strip().partition("\n")[0]
        if state in CONFLICTS:
            return None
        if state == ABORTED_STATE:
            return StoreError(ABORTED)
        if state in MISSING:
            return self._missing(message)
        if state == FORBIDDEN:
            return self._forbidden(message)
        if state == READ_ONLY:
            return self._read_only(message)
        return StoreError(f"the enqueue on connection= failed: {type(error).__name__}: {message}")

    def _missing(self, message: str) -> StoreError:
        return StoreError(
            f"the database behind connection= has not the tables of this version ({message}): run `perdure migrate` once"
        )

    def _forbidden(self, message: str) -> StoreError:
        return StoreError(
            f"the role of connection= may not put jobs on record ({message}): it needs USAGE on the schema {self.schema}, "
            "SELECT and INSERT on its tables jobs, waiting, held_keys, kept_keys, edges, unresolved and limit_notices, and "
            "SELECT on its table queues"
        )

    def _read_only(self, message: str) -> StoreError:
        return StoreError(
            f"the transaction of connection= is read-only ({message}): begin one that may write, on the primary"
        )


async def look(connection: Connection, address: Address) -> PostgresIdentity:
    """The home that this store's own connection leads to."""
    question = load("database_identity", address.schema)["which"]
    row = await (await connection.execute(question)).fetchone()
    assert row is not None
    return PostgresIdentity(str(address), address.schema, question, str(row[0]), int(row[1]))
