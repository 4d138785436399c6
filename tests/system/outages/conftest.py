"""Stores whose server, or file, can be made to answer nobody for a while."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import servers
from perdure.storage.contract import Storage
from perdure.storage.sqlite.connection import writer
from perdure.storage.sqlite.store import SqliteStorage
from tests.support.real_servers import decline

LIMIT = 2.0  # seconds; as short as a busy machine allows
STORES = ["sqlite", "postgres", "valkey", "mongo"]


class Outage:
    """A store's address, and how its server stops answering and goes on."""

    def __init__(self, url: str, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self.url = url
        self.begin = begin
        self.end = end


@pytest.fixture
def limit(monkeypatch) -> float:
    """A limit that a test can wait for."""
    monkeypatch.setattr(Storage, "gives_up_after", LIMIT)
    monkeypatch.setattr(SqliteStorage, "gives_up_after", LIMIT)
    monkeypatch.setattr(writer, "BUSY_LIMIT", LIMIT)
    return LIMIT


def own_server(kind: str, **settings: str) -> servers.Server:
    """A server that a test may stop and kill."""
    try:
        own = servers.start(kind, settings=settings)
    except servers.NotAvailable as missing:
        decline(kind, missing)
    if own.process is None:
        own.stop()
        pytest.skip("the server that the environment names is not ours to stop")
    return own


@pytest.fixture(params=STORES)
def kind(request) -> str:
    return request.param


@pytest.fixture
def outage(kind, tmp_path) -> Iterator[Outage]:
    if kind == "sqlite":
        yield from _locked_file(tmp_path / "jobs.db")
        return
    with own_server(kind) as own:
        haste = "&heartbeatFrequencyMS=500&connectTimeoutMS=1000" if kind == "mongo" else ""
        yield Outage(own.fresh() + haste, own.freeze, own.thaw)
        own.thaw()


def _locked_file(path: Path) -> Iterator[Outage]:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def begin() -> None:
        other.execute("begin exclusive")

    def end() -> None:
        if other.in_transaction:
            other.execute("rollback")

    try:
        yield Outage(f"sqlite:///{path}", begin, end)
    finally:
        end()
        other.close()
