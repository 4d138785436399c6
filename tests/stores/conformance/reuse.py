"""Databases of a server that are used again: making one takes longer than most cases need."""

from __future__ import annotations

import atexit
from collections import defaultdict
from functools import cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import servers
from tests.support.real_servers import server

_free: defaultdict[str, list[str]] = defaultdict(list)
KEPT = "meta"  # what a store says of itself when it makes its tables


def address(kind: str) -> str:
    """Where a store of this kind begins empty: a fresh database, or one that was given back."""
    if not _free[kind]:
        return server(kind).fresh()
    url = _free[kind].pop()
    _EMPTIED[servers.scheme(kind)](url)
    return url


def give_back(kind: str, url: str) -> None:
    """Nobody uses this database any more."""
    if servers.scheme(kind) in _EMPTIED:
        _free[kind].append(url)


def _empty_postgres(url: str) -> None:
    base, _, schema = url.partition("schema=")
    connection = _postgres(base.rstrip("?&"))
    found = connection.execute(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = %s and c.relkind in ('r', 'p') and not c.relispartition and c.relname <> %s",
        (schema, KEPT),
    ).fetchall()
    connection.execute(";".join(f'delete from "{schema}"."{table}"' for (table,) in found).encode())


@cache
def _postgres(url: str) -> Any:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)
    atexit.register(connection.close)
    return connection


def _empty_mongo(url: str) -> None:
    parts = urlsplit(url)
    database = _mongo(urlunsplit(parts._replace(path="/")))[parts.path.lstrip("/")]
    for name in database.list_collection_names():
        if not name.endswith(KEPT):
            database[name].delete_many({})


@cache
def _mongo(url: str) -> Any:
    import pymongo

    client: pymongo.MongoClient[Any] = pymongo.MongoClient(url, serverSelectionTimeoutMS=500)
    atexit.register(client.close)
    return client


_EMPTIED = {"postgresql": _empty_postgres, "mongodb": _empty_mongo}
