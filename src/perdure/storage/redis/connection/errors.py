"""Turns errors of redis-py into StoreErrors that say what to do.

Three kinds matter to the caller of a command. *Refused*: the server said no, and saying it again will not help. *Not now*:
the server did nothing, and will soon (it is loading, failing over, busy with a script). *Broken*: the connection ended, and
whether the server did it is not known.
"""

from __future__ import annotations

import asyncio
import ssl
from enum import Enum

from redis import exceptions as driver
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, TimeoutError

from perdure.errors import StoreError, StoreUnavailable
from perdure.storage import file_descriptors


class Kind(Enum):
    REFUSED = "refused"
    NOT_NOW = "not now"
    BROKEN = "broken"


BROKEN = (ConnectionError, TimeoutError, OSError, asyncio.TimeoutError, EOFError)
_NOT_NOW = ("MAXCLIENTS", "LOADING", "READONLY", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED")
# the server refuses writes, and saying it again at once will not help: somebody has to make room first
_LACKING = ("OOM", "MISCONF", "NOREPLICAS")
# the driver makes a class of a code and takes it out of the text
_CODES = {
    driver.BusyLoadingError: "LOADING",
    driver.ReadOnlyError: "READONLY",
    driver.MasterDownError: "MASTERDOWN",
    driver.ClusterDownError: "CLUSTERDOWN",
    driver.TryAgainError: "TRYAGAIN",
    driver.MovedError: "MOVED",
    driver.AskError: "ASK",
    driver.OutOfMemoryError: "OOM",
    driver.NoPermissionError: "NOPERM",
    driver.ClusterCrossSlotError: "CROSSSLOT",
}
_WORDS = {
    "NOAUTH": "it wants a password: write it into the URL, redis://:password@host",
    "WRONGPASS": "user name or password are wrong; see the URL",
    "NOPERM": "its ACL forbids this user a command or the keys of this prefix; allow both (docs: guide/redis)",
    "READONLY": "it is a read-only replica; name the primary in the URL",
    "MAXCLIENTS": "it takes no more clients: close some (`CLIENT LIST` shows them), or raise `maxclients`",
    "DENIED": (
        "it takes only clients of its own machine, because it runs in protected mode: give it a password (`requirepass`), "
        "and write that into the URL"
    ),
    "LOADING": "it is still loading its data; try again when it is done",
    "BUSY": "a script of somebody else has blocked it for long; SCRIPT KILL ends it",
    "MASTERDOWN": "it is a replica that has lost its primary; name the primary in the URL",
    "OOM": (
        "its memory is full (maxmemory), so it takes no new jobs; those on record run and end as ever. Give it more memory, "
        "or keep ended jobs for a shorter time"
    ),
    "MISCONF": "it cannot write to its disk and refuses writes; look at its log and make room",
    "WRONGTYPE": "somebody else's keys stand under our prefix; choose another one with ?prefix=",
    "CLUSTERDOWN": "the cluster is down; look at `CLUSTER INFO`",
    "MOVED": "our keys live on another node of the cluster, which cannot be reached from here",
    "ASK": "the cluster is moving our keys to another node; try again when it is done",
    "TRYAGAIN": "the cluster is moving our keys to another node; try again when it is done",
    "CROSSSLOT": "the cluster spreads our keys over several slots, which their common hash tag should prevent",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write and refuses writes",
}


def kind_of(error: BaseException) -> Kind:
    if isinstance(error, AuthenticationError):
        return Kind.REFUSED
    if _code(error) in _NOT_NOW:
        return Kind.NOT_NOW
    return Kind.BROKEN if isinstance(error, BROKEN) else Kind.REFUSED


def is_wrong_type(error: BaseException) -> bool:
    """Whether a key holds something of another type than ours."""
    return _code(error) == "WRONGTYPE"


def is_no_database(error: BaseException) -> bool:
    """The server has no database of the number that the URL names."""
    return "DB index is out of range" in str(error) or "invalid DB index" in str(error)


def store_error_of(error: BaseException, place: str) -> StoreError:
    """The StoreError for an error of the driver. A password is in none of their texts."""
    words = _words(error, place)
    refused = kind_of(error) is Kind.REFUSED and _code(error) not in _LACKING
    told = StoreError(words) if refused else StoreUnavailable(words).at(place)
    told.__cause__ = error
    return told


def _words(error: BaseException, place: str) -> str:
    if isinstance(error, ConnectionError) and isinstance(error.__context__, OSError):
        error = error.__context__  # redis-py puts a text of its own before it
    text, code = str(error), _code(error)
    if code is not None:
        return f"{place}: {_WORDS[code]} ({_short(text)})"
    if is_no_database(error):
        return f"{place}: it has no database of this number; see `databases` in its configuration ({text})"
    if isinstance(error, BROKEN) and file_descriptors.are_exhausted(error):
        return f"{place}: {file_descriptors.EXHAUSTED} ({_short(text)})"
    if isinstance(error, ssl.SSLError):
        return f"{place}: TLS failed: {_short(text)}; rediss:// speaks TLS, redis:// does not"
    if isinstance(error, asyncio.TimeoutError):
        hint = "; rediss:// speaks TLS, does the server?" if place.startswith("rediss:") else ""
        return f"{place} cannot be reached: no answer in time{hint}"
    if isinstance(error, BROKEN):
        return f"{place} cannot be reached: {_short(text) or type(error).__name__}"
    if isinstance(error, RedisError):
        return f"{place}: the server says: {_short(text)}"
    return f"{place}: {type(error).__name__}: {_short(text)}"


def _code(error: BaseException) -> str | None:
    """The server's code of an error; errors of a script have it somewhere in their text."""
    if type(error) in _CODES:
        return _CODES[type(error)]
    text = str(error)
    if isinstance(error, RedisError) and "max number of clients" in text:
        return "MAXCLIENTS"
    if isinstance(error, AuthenticationError):
        return "NOAUTH" if "required" in text.lower() else "WRONGPASS"
    if not isinstance(error, driver.ResponseError):
        return None
    return next(
        (code for code in _WORDS if text.startswith(f"{code} ") or f"-{code} " in text or f" {code} " in text), None
    )


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}…"
