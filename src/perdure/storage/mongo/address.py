"""The address of a MongoDB store: `mongodb://host/database`, `mongodb+srv://cluster.example.org/database`.

It is MongoDB's own connection string, with all its options. The path names the database, "perdure" if there is none. What
may hold a password is never shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from perdure.errors import StoreError

DATABASE = "perdure"
LONGEST_NAME = 63  # bytes
NOT_IN_A_NAME = '/\\. "$*<>:|?\x00'
EXAMPLE = "mongodb://user:password@host:27017/perdure?replicaSet=rs0"


@dataclass(frozen=True, slots=True)
class MongoAddress:
    """A checked address. `url` is the driver's and may hold a password."""

    scheme: str
    hosts: str
    database: str
    url: str = field(repr=False)
    options: frozenset[str] = frozenset()  # their names, in lower case
    signals: bool = True  # whether workers are woken through a change stream

    def __str__(self) -> str:
        return f"{self.scheme}://{self.hosts}/{self.database}"


def address_of(url: str) -> MongoAddress:
    """Check an address. StoreError says what it should look like."""
    scheme, colon, rest = url.partition("://")
    scheme = scheme.lower()
    if not colon:
        raise StoreError(f"a MongoDB URL looks like {EXAMPLE}")
    body, _, query = rest.partition("?")
    authority, _, path = body.partition("/")
    secret, at, hosts = authority.rpartition("@")
    if not hosts:
        raise StoreError(f"a MongoDB URL names a host: {EXAMPLE}")
    if at and ("@" in secret or "/" in path):
        raise StoreError("@ : / ? # [ ] % in a user name or password of a MongoDB URL are written as %40, %3A, %2F, …")
    database = _check_database(unquote(path) or DATABASE)
    if "#" in url.rpartition("@")[2]:
        raise StoreError("a MongoDB URL has no #; write %23 for a # in a password")
    signals, query = _split_off_signals(query)
    names = frozenset(part.partition("=")[0].lower() for part in query.split("&") if part)
    # the driver takes the path for the database of the credentials, so it stays as it was given
    return MongoAddress(scheme, hosts, database, f"{scheme}://{body}{'?' if query else ''}{query}", names, signals)


def _split_off_signals(query: str) -> tuple[bool, str]:
    """Our own option, and the query without it, for the driver."""
    parts = query.split("&")
    own = [part.partition("=")[2] for part in parts if part.partition("=")[0] == "signals"]
    if any(value not in ("on", "off") for value in own):
        raise StoreError("signals is on or off: mongodb://host/perdure?signals=off")
    return "off" not in own, "&".join(part for part in parts if part.partition("=")[0] != "signals")


def _check_database(name: str) -> str:
    if "/" in name:
        raise StoreError(f"the path of a MongoDB URL is the name of one database: {EXAMPLE}")
    if any(char in NOT_IN_A_NAME for char in name) or len(name.encode()) > LONGEST_NAME:
        raise StoreError(
            f'{name!r} cannot be the name of a database in MongoDB: at most {LONGEST_NAME} bytes, none of /\\. "$*<>:|?'
        )
    if name in ("admin", "local", "config"):
        raise StoreError(f"the database {name!r} belongs to MongoDB itself: name another one, e.g. /{DATABASE}")
    return name
