"""Explains PostgreSQL's errors: what to do about them, and which of them are worth a retry.

Errors of connecting have no code, because libpq reports them as texts. They are recognized by the server's words.
"""

from __future__ import annotations

import re

import msgspec
import psycopg

from perdure.errors import PerdureError, StoreError, StoreMisconfigured, StoreUnavailable
from perdure.storage import file_descriptors

# the transaction met another one; nothing of it was done
CONFLICTS = frozenset({"40P01", "40001", "55P03"})
# the server is gone, full, starting, or a replica for the moment; another try may find it well
PASSING = ("08", "57P", "53300", "25006")
# the server lacks disk space or memory, or cannot read or write; its connections work all the same
LACKING = ("53", "58")
# a stored value that a statement cannot work with: too large, not of its kind, or where there is another row already
MISREAD = ("22", "54", "23502", "23505", "23514")
READ_ONLY, FULL_HOUSE = "25006", "53300"

_WORDS = {
    "28P01": "the password is wrong or missing; put the right one into the URL, ~/.pgpass or PGPASSWORD",
    "28000": "this user may not log in here; look at the user name and the server's pg_hba.conf",
    "3D000": "there is no such database; create it with CREATE DATABASE, or name another in the URL",
    "53300": "the server has no connection left (max_connections, or a limit of the role); close some, or use PgBouncer",
    "42501": "this role lacks a privilege; see the roles in the guide (docs: guide/postgresql)",
    "25006": "this server takes no writes: a replica, or default_transaction_read_only; use the address of the primary",
    "42P01": "a table of this version of Perdure is missing: run `perdure migrate`",
    "42703": "the tables are of another version of Perdure: run `perdure migrate`",
    "3F000": "there are no tables of Perdure: run `perdure migrate`",
    "53100": "the server's disk is full, and nothing of this was stored; make room and go on",
    "53200": "the server is out of memory, and nothing of this was stored",
    "55P03": "another session has kept a lock for too long; end its transaction",
    "57014": "the server cancelled the statement (statement_timeout, or an administrator); nothing of it was done",
    "57P01": "the server ended the connection (it is stopping, or an administrator did it)",
    "57P03": "the server is starting or stopping; try again soon",
}
# what a connection is refused with, by words of the server
_REFUSALS = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("pg_hba.conf", "28000"),
    ("is not permitted to log in", "28000"),
    ("authentication failed", "28000"),
    ("too many c", "53300"),  # connections for role …; clients already
    ("connection slots are reserved", "53300"),
    ("the database system is", "57P03"),
    ("session is read-only", "25006"),
    ("session is not read-only", "25006"),
)


# what libpq says of a value in the URL, before it asks the server or because the server does not know it
_OF_THE_URL = re.compile(
    r"invalid \w+ value|invalid integer value|invalid port number|could not parse network address|definition of service"
    r"|unrecognized configuration parameter|requires a value|certificate file|private key file|invalid connection option"
)
_QUOTED = re.compile(r"found in \".*?\"(?=,)", re.DOTALL)


class Unreached(StoreUnavailable, ConnectionError):
    """The server was not reached, or did not answer. Who can wait may try again."""


def state_of(error: BaseException) -> str | None:
    """The SQLSTATE of an error, also of a refused connection."""
    if not isinstance(error, psycopg.Error):
        return None
    if error.sqlstate is not None:
        return error.sqlstate
    text = str(error)
    for words, state in _REFUSALS:
        if words in text:
            return state
    if "does not exist" in text and ("database" in text or "role" in text):
        return "3D000" if 'database "' in text else "28000"
    return None


def is_conflict(error: BaseException) -> bool:
    return state_of(error) in CONFLICTS


def is_broken(error: BaseException) -> bool:
    """The connection is gone, or could not be made, for a reason that may pass."""
    if isinstance(error, OSError | TimeoutError):
        return True
    state = state_of(error)
    if state is not None:
        return state.startswith(PASSING)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def unavailable(error: BaseException) -> bool:
    """The server is not to be reached, or cannot do what it is asked for, for a reason that may pass."""
    return is_broken(error) or (state_of(error) or "").startswith(LACKING)


def _is_of_the_url(error: BaseException) -> bool:
    """The URL is wrong, whatever the server does."""
    if not isinstance(error, psycopg.Error) or error.sqlstate is not None:
        return False
    return isinstance(error, psycopg.ProgrammingError) or _OF_THE_URL.search(str(error)) is not None


def explain_connecting(error: Exception, place: str) -> StoreError:
    """The StoreError for a first connection that could not be made. libpq may quote a part of a wrong URL, which may be the
    password."""
    if not _is_of_the_url(error):
        return explain(error, place)
    return StoreMisconfigured(f"{place}: the URL is wrong: {_QUOTED.sub(r'found in it', _first_line(error))}")


def is_misread(error: BaseException) -> bool:
    """A stored value may be what the statement, or what reads its answer, cannot work with."""
    if isinstance(error, psycopg.Error):
        return error.sqlstate is not None and error.sqlstate.startswith(MISREAD)
    if isinstance(error, PerdureError | UnicodeError):
        return False
    return isinstance(error, msgspec.MsgspecError | ValueError | OverflowError)


def explain(error: Exception, place: str) -> StoreError:
    """The StoreError for an error of the driver."""
    words = f"{place}: {_words(error)}"
    explained: StoreError = StoreError(words)
    if is_broken(error):
        explained = Unreached(words).at(place)
    elif unavailable(error):
        explained = StoreUnavailable(words).at(place)
    explained.__cause__ = error
    return explained


def _words(error: Exception) -> str:
    if not isinstance(error, psycopg.Error | OSError | TimeoutError):
        return f"a stored value cannot be read: {type(error).__name__}: {error}"
    state = state_of(error)
    if state in _WORDS:
        return f"{_WORDS[state]} ({_first_line(error)})"
    if "FATAL" in str(error):
        return f"the server refuses the connection: {_first_line(error)}"
    if is_broken(error) and file_descriptors.are_exhausted(error):
        return f"{file_descriptors.EXHAUSTED} ({_first_line(error)})"
    if is_broken(error):
        return f"the server cannot be reached: {_first_line(error) or 'it did not answer in time'}"
    return f"PostgreSQL says: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
