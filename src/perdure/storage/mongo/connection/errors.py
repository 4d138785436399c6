"""Turns errors of MongoDB into ours, with advice, and tells which of them may be repeated."""

from __future__ import annotations

from pymongo import errors

from perdure.errors import InvalidCall, PerdureError, StoreError, StoreUnavailable
from perdure.storage import file_descriptors
from perdure.storage.driver_calls import GivenUp

TRANSIENT, UNKNOWN_COMMIT = "TransientTransactionError", "UnknownTransactionCommitResult"
WRITE_CONFLICT, DUPLICATE_KEY, UNAUTHORIZED, NO_SUCH_TRANSACTION = 112, 11000, 13, 251
OUT_OF_DISK = 14031
_TOO_LARGE = (10334, 17419, 17420)

_WORDS = {
    UNAUTHORIZED: "this user lacks a right; it needs readWrite on the database",
    18: "the user name or password is wrong, or the user belongs to another database (see authSource=)",
    8000: "the user name or password is wrong",
    26: "there are no collections of Perdure: run `perdure migrate`",
    85: "an index that is not Perdure's is in the way; drop it, or use another database",
    86: "an index that is not Perdure's is in the way; drop it, or use another database",
    91: "the server is shutting down",
    189: "this server is no longer the primary",
    10107: "this server is not the primary; name all members of the replica set, without directConnection",
    13435: "this server is not the primary; name all members of the replica set, without directConnection",
    11602: "this server is no longer the primary",
    11600: "the server is shutting down",
    OUT_OF_DISK: "the server's disk is full; make room and go on, nothing that was acknowledged is lost",
    NO_SUCH_TRANSACTION: (
        "the server has lost the transaction (it restarted, or the transaction took too long), and nothing of it was "
        "stored; run it again"
    ),
    263: "the server cannot do this inside a transaction",
    20: "the server takes no transactions; a replica set is needed",
}


class Unreachable(StoreUnavailable, ConnectionError):
    """The server, or a majority of its set, was not reached. The last command may have been run; repeating it is safe."""


class Conflict(StoreError):
    """Another transaction wrote the same documents. Nothing was committed."""


def is_transient(error: BaseException) -> bool:
    """Nothing of the transaction was committed, and it may be repeated."""
    return isinstance(error, errors.PyMongoError) and error.has_error_label(TRANSIENT)


def is_conflict(error: BaseException) -> bool:
    """Another transaction wrote the same documents."""
    return has_code(error, WRITE_CONFLICT)


def is_unknown_commit(error: BaseException) -> bool:
    return isinstance(error, errors.PyMongoError) and error.has_error_label(UNKNOWN_COMMIT)


def has_code(error: BaseException, code: int) -> bool:
    return isinstance(error, errors.OperationFailure) and error.code == code


def is_forgotten(error: BaseException) -> bool:
    """The server does not know the transaction that was to be committed, and does not say that nothing was committed: it
    restarted, or another one took over, and what it knows is not on a majority yet."""
    return has_code(error, NO_SUCH_TRANSACTION) and not is_transient(error)


def is_broken(error: BaseException) -> bool:
    """The connection is lost, could not be made, or too few members of the set have confirmed a write, and that may pass."""
    if isinstance(error, GivenUp) or has_no_sessions(error):
        return True
    return isinstance(error, errors.ConnectionFailure | errors.WaitQueueTimeoutError | errors.WTimeoutError)


def has_no_sessions(error: BaseException) -> bool:
    """The connection was made while the server was starting, and can have no sessions. The driver reports that as a mistake
    in the URL."""
    return isinstance(error, errors.ConfigurationError) and "Sessions are not supported" in str(error)


def is_unavailable(error: BaseException) -> bool:
    """The server cannot be reached, or the server that had the transaction is gone."""
    return has_code(error, NO_SUCH_TRANSACTION) or is_broken(error)


def is_duplicate(error: BaseException) -> bool:
    """A document with this id or unique key exists."""
    if isinstance(error, errors.BulkWriteError):
        found: list[dict[str, int]] = error.details.get("writeErrors", [])
        return any(each.get("code") == DUPLICATE_KEY for each in found)
    return isinstance(error, errors.OperationFailure) and error.code == DUPLICATE_KEY


def error_for(error: Exception, place: object) -> PerdureError:
    """Our error for an error of the driver. A document that is too large is the caller's mistake and must not be
    repeated."""
    words = f"{place}: {_words(error)}"
    told: PerdureError = StoreError(words)
    if _is_too_large(error):
        told = InvalidCall(words)
    elif is_unavailable(error):
        told = Unreachable(words).at(place)
    elif has_code(error, OUT_OF_DISK):
        told = StoreUnavailable(words).at(place)
    elif is_conflict(error):
        told = Conflict(words)
    told.__cause__ = error
    return told


def _words(error: Exception) -> str:
    code = _code(error)
    if _is_too_large(error):
        return (
            "a job is larger than the 16 MB that MongoDB takes for one document (payload, result, errors and progress "
            "together); put large data elsewhere and hand over where they are"
        )
    if "transaction is too large" in str(error):
        return "so many large jobs in one call do not fit into the server's cache; hand over fewer at once"
    if code == UNAUTHORIZED and "requires authentication" in str(error):
        return f"it wants a user: write one into the URL, mongodb://user:password@host/database ({_first_line(error)})"
    if code in _WORDS:
        return f"{_WORDS[code]} ({_first_line(error)})"
    if is_broken(error) and file_descriptors.are_exhausted(error):
        return f"{file_descriptors.EXHAUSTED} ({_first_line(error)})"
    if isinstance(error, errors.ServerSelectionTimeoutError):
        return f"the server cannot be reached: {_first_line(error)}"
    if isinstance(error, errors.WTimeoutError):
        return (
            f"a majority of the members of the replica set has not confirmed the write in time ({_first_line(error)}); it "
            "may take place later: see rs.status() for members that are down or far behind"
        )
    if is_broken(error):
        return f"the connection broke: {_first_line(error)}"
    if isinstance(error, errors.ConfigurationError | errors.InvalidURI):
        return f"the URL is not understood: {_first_line(error)}"
    if is_conflict(error):
        return "another transaction has kept a document for too long, or this one is too large for the server's cache"
    return f"MongoDB says: {_first_line(error)}"


def _is_too_large(error: Exception) -> bool:
    return isinstance(error, errors.DocumentTooLarge) or _code(error) in _TOO_LARGE


def _code(error: Exception) -> int | None:
    if isinstance(error, errors.BulkWriteError):
        found: list[dict[str, int]] = error.details.get("writeErrors", [])
        return found[0].get("code") if found else None
    if isinstance(error, errors.NotPrimaryError):  # not one of the failures below, though the server said it
        return error.details.get("code") if isinstance(error.details, dict) else None
    return error.code if isinstance(error, errors.OperationFailure) else None


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    for rest in (", full error: ", ", Timeout: ", " (configured timeouts: ", ", lsid: "):
        text = text.partition(rest)[0]
    return text
