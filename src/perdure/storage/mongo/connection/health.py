"""Checks what the server must be, and how safe a job is on it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from perdure.core.clock import SECOND
from perdure.errors import StoreError, StoreMisconfigured
from perdure.storage.contract import Durability, Finding

from ..address import MongoAddress
from .server import TROUBLE, Server

OLDEST_WIRE = 13  # MongoDB 5.0
CLOCKS_APART = 0.1  # seconds
EPHEMERAL = ("inMemory", "ephemeralForTest", "devnull")


def check(hello: dict[str, Any], address: MongoAddress) -> None:
    """Refuse a server that cannot keep the promises, and say what mends it."""
    if hello.get("msg") == "isdbgrid":
        raise StoreMisconfigured(
            f"{address} is a sharded cluster (mongos), on which Perdure is not tested: use the address of a replica set"
        )
    if hello.get("isreplicaset"):
        raise StoreError(
            f"{address} was started with --replSet, but the replica set was never initiated: run "
            '`mongosh --eval "rs.initiate()"` once on that host'
        )
    if "setName" not in hello:
        raise StoreError(
            f"{address} is a standalone server, and without a replica set MongoDB has no transactions. One node is enough: "
            "stop it, start it again on the same data with `mongod --replSet rs0 …` (in mongod.conf: "
            'replication: {replSetName: rs0}), then run `mongosh --eval "rs.initiate()"` once; all data stay'
        )
    if not hello.get("isWritablePrimary"):
        primary = f" (the primary is {hello['primary']})" if "primary" in hello else ""
        raise StoreError(
            f"{address} is not the primary of its replica set{primary} and takes no writes: name the members of the set, "
            "without directConnection=true, and the primary is found"
        )
    if hello.get("maxWireVersion", 0) < OLDEST_WIRE:
        raise StoreMisconfigured(f"{address} is older than MongoDB 5.0: upgrade it")


async def durability(server: Server, hello: dict[str, Any]) -> Durability:
    """The grade by the number of members with data, and by their storage engine. Every write waits for the journals of a
    majority, whatever the server's own defaults are."""
    engine = await _engine(server)
    if engine in EPHEMERAL:
        return Durability("D", f"the storage engine {engine} keeps nothing on disk", "use storage engine wiredTiger")
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    if members > 1:
        return Durability(
            "A", f"{members} members keep data; a write is in the journals of a majority before it counts"
        )
    return Durability(
        "B",
        "a replica set of one member; a write is in its journal before it counts",
        "two more members would let acknowledged jobs survive the loss of a machine",
    )


async def findings(server: Server, hello: dict[str, Any], now: int) -> list[Finding]:
    """What `perdure doctor` shows: version, members, and whether the clocks agree."""
    found = []
    with suppress(*TROUBLE):
        build = await server.command("buildInfo")
        engine = await _engine(server) or "unknown"
        found.append(Finding("server", "ok", f"MongoDB {build['version']}, storage engine {engine}"))
    members = [*hello.get("hosts", ()), *hello.get("passives", ())]
    about = f"{hello['setName']}: {', '.join(members)}; the primary is {hello['primary']}"
    found.append(Finding("replica set", "ok", about))
    apart = abs(await server.now() - now) / SECOND
    agrees = apart < CLOCKS_APART
    found.append(
        Finding(
            "store clock",
            "ok" if agrees else "warn",
            f"counted here, {apart:.3f} s from what the server says",
            None if agrees else "restart this process; if it stays, look at the server's clock",
        )
    )
    return found


async def _engine(server: Server) -> str | None:
    """The storage engine; None if this user may not know it."""
    try:
        status = await server.command("serverStatus")
    except TROUBLE:
        return None
    engine: str | None = status.get("storageEngine", {}).get("name")
    return engine
