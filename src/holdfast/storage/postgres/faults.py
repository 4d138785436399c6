"""PostgreSQL's errors in words that say what to do, and which of them are worth another try."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from holdfast.errors import StoreError

# the transaction met another one; nothing of it was done
CONFLICTS = (errors.DeadlockDetected, errors.SerializationFailure)
# the server went away, or is not ready yet; whether the last word was heard is unknown
BROKEN = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.DatabaseDropped,
    errors.IdleInTransactionSessionTimeout,
    errors.TooManyConnections,
)


def conflicting(error: BaseException) -> bool:
    return isinstance(error, CONFLICTS)


def broken(error: BaseException) -> bool:
    """The connection is gone, or could not be made, for a reason that may pass."""
    if isinstance(error, (PoolTimeout, *BROKEN)):
        return True
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


def explained(error: Exception, place: str) -> StoreError:
    """The StoreError for an error of the driver."""
    told = StoreError(f"{place}: {_words(error)}")
    told.__cause__ = error
    return told


_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (errors.InvalidPassword, "the password is wrong or missing"),
    (errors.InvalidAuthorizationSpecification, "this user may not log in here; look at the user name and pg_hba.conf"),
    (errors.InvalidCatalogName, "there is no such database; create it with CREATE DATABASE, or name another"),
    (
        errors.TooManyConnections,
        "the server has no connection left (max_connections); close some, or put PgBouncer in front",
    ),
    (errors.InsufficientPrivilege, "this role lacks a privilege; `holdfast migrate --help` lists what it needs"),
    (errors.ReadOnlySqlTransaction, "this server is a read-only replica; use the address of the primary"),
    (errors.UndefinedTable, "there are no tables of this version of Holdfast: run `holdfast migrate`"),
    (errors.UndefinedColumn, "the tables are of another version of Holdfast: run `holdfast migrate`"),
    (errors.InvalidSchemaName, "there are no tables of Holdfast: run `holdfast migrate`"),
    (errors.DiskFull, "the server's disk is full; make room and go on, nothing that was acknowledged is lost"),
    (errors.OutOfMemory, "the server is out of memory"),
    (errors.LockNotAvailable, "another session has kept a lock for too long; end its transaction"),
    (errors.QueryCanceled, "the statement was cancelled by the server (statement_timeout, or an administrator)"),
    (errors.CannotConnectNow, "the server is starting or stopping; try again soon"),
)


def _words(error: Exception) -> str:
    for kind, words in _WORDS:
        if isinstance(error, kind):
            return f"{words} ({_first_line(error)})"
    if isinstance(error, PoolTimeout):
        return "no connection could be had in time; the server does not answer, or all connections are in use"
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return f"the server cannot be reached: {_first_line(error)}"
    return f"PostgreSQL says: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
