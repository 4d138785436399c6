"""Addresses in the docs stand for real servers: `postgresql://localhost/shop` is a database of the run's own server, new for
each page, `redis://localhost:6379/0` a prefix of its own, `mongodb://localhost/shop` a database of a replica set. A page
without such an address needs no server."""

from __future__ import annotations

import re
import secrets
from types import TracebackType

from tests.support.real_servers import server

_ADDRESS = re.compile(r"(?P<scheme>postgresql(?:\+\w+)?)://localhost/(?P<database>\w+)")

_REDIS = re.compile(r"(?P<scheme>redis|valkey)://localhost:6379/0(?P<prefix>\?prefix=[\w.:-]+)?")

_MONGO = re.compile(r"mongodb://localhost/(?P<database>\w+)")


class StandIns:
    """The databases of one page, by the names that it gives them."""

    def __init__(self) -> None:
        self._databases: dict[str, str] = {}
        self._prefixes: dict[str, str] = {}
        self._mongo: dict[str, str] = {}

    def real(self, text: str) -> str:
        """The text with addresses that lead somewhere."""
        return _MONGO.sub(self._replica_set, _REDIS.sub(self._redis, _ADDRESS.sub(self._address, text)))

    def __enter__(self) -> StandIns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name in self._databases.values():
            _run(f'drop database "{name}" with (force)')

    def _address(self, found: re.Match[str]) -> str:
        shown = found["database"]
        if shown not in self._databases:
            name = f"docs_{secrets.token_hex(6)}"
            _run(f'create database "{name}"')
            self._databases[shown] = name
        place = server("postgres").url.removeprefix("postgresql").rpartition("/")[0]
        return f"{found['scheme']}{place}/{self._databases[shown]}"

    def _redis(self, found: re.Match[str]) -> str:
        shown = found["prefix"] or ""
        if shown not in self._prefixes:
            self._prefixes[shown] = server("valkey").fresh().removeprefix("redis")
        return f"{found['scheme']}{self._prefixes[shown]}"

    def _replica_set(self, found: re.Match[str]) -> str:
        shown = found["database"]
        if shown not in self._mongo:
            self._mongo[shown] = server("mongo").fresh()
        return self._mongo[shown]


def _run(statement: str) -> None:
    import psycopg

    with psycopg.connect(server("postgres").url, autocommit=True) as connection:
        connection.execute(statement.encode())
