"""The stores that can be fuzzed, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import servers

from .harness import run
from .mongo import MongoTarget
from .outbox import PostgresOutboxTarget, SqliteOutboxTarget, run_outbox
from .postgres import PostgresTarget
from .redis import RedisTarget
from .report import Report
from .sqlite import SqliteTarget
from .target import Target

FILES = ("sqlite", "sqlite+apsw")
STORES = (*FILES, "postgres", "valkey", "redis", "mongo")
OUTBOXES = ("outbox-sqlite", "outbox-postgres")


async def fuzz(
    name: str,
    folder: Path,
    server: Callable[[str], servers.Server],
    *,
    seed: int,
    count: int,
    only: Collection[str] | None = None,
) -> Report:
    """Fuzz a fresh store, or outbox, of this kind."""
    if name in STORES:
        return await run(open_target(name, folder, server, seed), seed=seed, count=count, only=only)
    outbox = (
        PostgresOutboxTarget(server("postgres").fresh())
        if name == "outbox-postgres"
        else SqliteOutboxTarget(folder / "outbox.db")
    )
    return await run_outbox(outbox, seed=seed, count=count, only=only)


def open_target(name: str, folder: Path, server: Callable[[str], servers.Server], seed: int) -> Target:
    """A fresh store of this kind, in this folder or on this server."""
    if name in FILES:
        return SqliteTarget(folder / "fuzz.db", name)
    if name == "postgres":
        return PostgresTarget(server(name).fresh())
    if name == "mongo":
        return MongoTarget(server(name).fresh(), seed)
    return RedisTarget(server(name).fresh(), seed)
