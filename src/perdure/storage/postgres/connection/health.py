"""The durability of a server, from its settings, and what `perdure doctor` reports about it.

The findings name what slows a queue down after weeks, before an operator notices it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from perdure.storage.contract import Durability, Finding

from ..queries import load
from ..schema import TABLES, load_migrations
from .server import Connection, Server, pipeline

LONG = 300  # seconds that a transaction may stay open
BEHIND = 1_000_000  # transactions that a slot may hold back
KEPT = 10 << 30  # bytes of WAL that a slot may keep
DEAD = 50_000  # dead rows of a thin table that vacuum should have removed
CROWDED = 0.8  # share of all connections in use
HASTY = 5_000  # milliseconds of statement_timeout under which a busy minute fails
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+) ON [^;]*;")
_THIN = (
    "waiting",
    "holds",
    "held_keys",
    "queues",
    "workers",
    "unresolved",
    "limit_notices",
    "limit_slots",
    "limit_starts",
)


async def read_durability(connection: Connection, schema: str) -> Durability:
    """What the server says that a commit means."""
    row = await (await connection.execute(load("health", schema)["settings"])).fetchone()
    assert row is not None
    commit, fsync, full_pages, standbys, unlogged = row
    if unlogged:
        detail, mend = f"unlogged tables are emptied by a crash: {', '.join(unlogged)}", "ALTER TABLE … SET LOGGED"
        return Durability("D", detail, mend)
    if fsync != "on" or full_pages != "on":
        found = "fsync" if fsync != "on" else "full_page_writes"
        return Durability("C", f"{found} is off: a power failure can destroy the database", f"set {found} = on")
    if commit == "off":
        detail = "synchronous_commit is off: the last half second can be lost when the server is killed"
        return Durability("C", detail, "set synchronous_commit = on, at least for this role (ALTER ROLE … SET)")
    if standbys and commit in ("on", "remote_apply", "remote_write"):
        return Durability("A", f"synchronous_commit is {commit}, with synchronous standbys ({standbys})")
    return Durability("B", f"synchronous_commit is {commit}: a job survives power loss once it is acknowledged")


async def findings(server: Server, connection: Connection) -> list[Finding]:
    schema = server.address.schema
    sql = load("health", schema)
    ours = {"schema": schema}
    cursors = await pipeline(
        connection,
        [
            (sql["server"], {}),
            (sql["transactions"], {"long": LONG}),
            (sql["slots"], {}),
            (sql["indexes"], ours),
            (sql["keys"], ours),
            (sql["tables"], ours),
        ],
    )
    (told,), transactions, slots, indexes, keys, tables = [await cursor.fetchall() for cursor in cursors]
    version, role, superuser, sees_all, used, places, vacuums, timeout = told
    return [
        Finding("server", "ok", f"PostgreSQL {version}"),
        _pooler(server),
        _role(role, superuser),
        _connections(used, places),
        _timeouts(timeout),
        _transactions(transactions, sees_all),
        _slots(slots),
        _indexes(schema, dict(indexes), {name for (name,) in keys}),
        _autovacuum(vacuums, [name for name, _, _, left_out, _ in tables if left_out], schema),
        _bloat(tables, schema),
    ]


def _pooler(server: Server) -> Finding:
    if not server.pooled:
        return Finding("pooler", "ok", "connected directly")
    found = "a pooler stands in between: no prepared statements, and workers are not woken, they poll"
    remedy = "let workers connect to the server itself; ?pooler=on says that it is meant so"
    return Finding("pooler", "ok" if server.address.pooler == "on" else "warn", found, remedy)


def _role(role: str, superuser: bool) -> Finding:
    if not superuser:
        return Finding("role", "ok", f"{role} is no superuser")
    remedy = "give Perdure a role of its own with rights to its schema alone (docs: guide/postgresql)"
    return Finding("role", "warn", f"{role} is a superuser", remedy)


def _connections(used: int, places: int) -> Finding:
    found = f"{used} of {places} connections in use"
    remedy = "raise max_connections, run fewer processes, or put a pooler in front of the others"
    return Finding("connections", "warn" if used > CROWDED * places else "ok", found, remedy)


def _timeouts(timeout: int) -> Finding:
    if not timeout:
        return Finding("timeouts", "ok", "no statement_timeout")
    remedy = "ALTER ROLE … SET statement_timeout = '30s', or 0, for the role of Perdure"
    return Finding("timeouts", "warn" if timeout < HASTY else "ok", f"statement_timeout is {timeout} ms", remedy)


def _transactions(rows: Sequence[Sequence[Any]], sees_all: bool) -> Finding:
    """An old snapshot keeps every row that died since: vacuum waits for its end."""
    blind = "" if sees_all else " (of this role alone; GRANT pg_read_all_stats shows all)"
    if not rows:
        return Finding("long transactions", "ok", f"none is older than {LONG // 60} minutes{blind}")
    found = ", ".join(f"{kind} {name}: {seconds // 60} min" for kind, name, seconds in rows)
    kind, name, _ = rows[0]
    end = f"ROLLBACK PREPARED '{name}'" if kind == "prepared" else f"SELECT pg_terminate_backend({name})"
    remedy = f"they keep dead rows alive; end them: {end}; set idle_in_transaction_session_timeout"
    return Finding("long transactions", "warn", f"{found}{blind}", remedy)


def _slots(rows: Sequence[Sequence[Any]]) -> Finding:
    stuck = [
        f"{name} ({age} transactions, {(kept or 0) >> 20} MiB of WAL)"
        for name, age, kept in rows
        if age > BEHIND or (kept or 0) > KEPT
    ]
    if not stuck:
        return Finding("replication slots", "ok", "none is left behind")
    remedy = f"nobody reads them: SELECT pg_drop_replication_slot('{rows[0][0]}'), or start the reader again"
    return Finding("replication slots", "warn", ", ".join(stuck), remedy)


def _indexes(schema: str, found: dict[str, bool], keyed: set[str]) -> Finding:
    wanted = dict(_wanted(schema))
    missing = [name for name in wanted if name not in found]
    unusable = [name for name, usable in found.items() if not usable]
    keyless = sorted(set(TABLES) - keyed)
    if missing:
        return Finding("indexes", "fail", f"missing: {', '.join(missing)}", f"run: {wanted[missing[0]]}")
    if unusable:
        return Finding("indexes", "fail", f"invalid: {', '.join(unusable)}", f"REINDEX INDEX {schema}.{unusable[0]}")
    if keyless:
        remedy = "restore the schema from its migrations: perdure migrate --dry-run on an empty schema prints them"
        return Finding("indexes", "fail", f"no primary key: {', '.join(keyless)}", remedy)
    return Finding("indexes", "ok", f"all {len(wanted)} are there and valid")


def _wanted(schema: str) -> Iterator[tuple[str, str]]:
    """The indexes that the migrations make, and the statements that make them."""
    for migration in load_migrations(schema):
        for statement in _INDEX.finditer(migration.text):
            yield statement[1], " ".join(statement[0].split())


def _autovacuum(runs: bool, left_out: Sequence[str], schema: str) -> Finding:
    if not runs:
        found = "autovacuum or track_counts is off: the tables grow without end"
        return Finding("autovacuum", "warn", found, "set autovacuum = on and track_counts = on")
    if left_out:
        remedy = f"ALTER TABLE {schema}.{left_out[0]} RESET (autovacuum_enabled)"
        return Finding("autovacuum", "warn", f"off for {', '.join(left_out)}", remedy)
    return Finding("autovacuum", "ok", "on")


def _bloat(tables: Sequence[Sequence[Any]], schema: str) -> Finding:
    bloated = [
        (name, f"{name}: {dead} dead rows beside {live}, {size >> 20} MiB")
        for name, live, dead, _, size in tables
        if name in _THIN and dead > DEAD and dead > 2 * live
    ]
    if not bloated:
        return Finding("bloat", "ok", "the small tables hold few dead rows")
    remedy = f"end long transactions, then VACUUM {schema}.{bloated[0][0]}"
    return Finding("bloat", "warn", ", ".join(found for _, found in bloated), remedy)
