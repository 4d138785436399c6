"""Turns SQLite's errors into errors that say what to do."""

from __future__ import annotations

from perdure.errors import StoreError, StoreUnavailable
from perdure.storage import file_descriptors

from .connection.database_file import DatabaseFile
from .connection.driver import BUSY, CANTOPEN, CORRUPT, FULL, IOERR, LOCKED, MOVED, NOTADB, READONLY, Driver

_WORDS = {
    BUSY: "another connection has kept it locked for too long; end that transaction",
    LOCKED: "another connection has kept it locked for too long; end that transaction",
    READONLY: "it is read-only for this user; change the permissions of the file and its directory",
    MOVED: "the file was removed or replaced while it was open; restart the programs that have it open",
    IOERR: "reading or writing it failed; look at the disk",
    CORRUPT: "it is damaged; restore a backup, or look at what `PRAGMA integrity_check` says",
    FULL: "the disk is full; make room and go on, nothing that was acknowledged is lost",
    CANTOPEN: "the file cannot be opened; look at the path and its permissions",
    NOTADB: "the file is not a SQLite database; name another file",
}
# a later try may succeed: a lock is released, a disk is back or has room, files can be opened again
_UNAVAILABLE = (BUSY, LOCKED, IOERR, CANTOPEN, FULL)
# the same for a statement of a handler's own. A table that is locked, or a file that is not there, may be its own mistake.
_UNAVAILABLE_TO_HANDLERS = (BUSY, IOERR, FULL)


def explanation(code: int) -> str:
    """What an error of this code means, and what to do."""
    return _WORDS[code]


def is_trouble(error: BaseException, driver: Driver) -> bool:
    """Whether a handler got this error from its connection because the file cannot be used just now."""
    return isinstance(error, driver.error) and driver.code(error) in _UNAVAILABLE_TO_HANDLERS


# SQLite's messages when the schema is to blame, and not a value
_OF_THE_SCHEMA = ("no such table", "no such column", "no such index", "syntax error", "attempt to write")


class Misread(StoreError):
    """A statement, or what reads its answer, met a stored value that it cannot work with."""


def misread(error: Exception, file: DatabaseFile) -> Misread:
    """The error for a value that our own code could not read."""
    found = Misread(f"{file}: a stored value cannot be read: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def explain(error: Exception, driver: Driver, file: DatabaseFile) -> StoreError:
    """The StoreError for an error of the driver."""
    code = driver.code(error)
    if "no such table: perdure_" in str(error) or "no such column" in str(error):
        found = StoreError(f"{file} has no tables of this version of Perdure ({error}): run `perdure migrate`")
    elif code == CANTOPEN and file_descriptors.are_exhausted(error):
        found = StoreUnavailable(f"{file}: {file_descriptors.EXHAUSTED} ({error})").at(file)
    elif code in _WORDS:
        words = f"{file}: {_WORDS[code]} ({error})"
        found = StoreUnavailable(words).at(file) if code in _UNAVAILABLE else StoreError(words)
    elif any(words in str(error) for words in _OF_THE_SCHEMA):
        found = StoreError(f"{file}: SQLite says: {error}")
    else:
        found = Misread(f"{file}: SQLite says: {error}")
    found.__cause__ = error
    return found
