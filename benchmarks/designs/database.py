"""A database of its own for each measurement, and what the server tells about it."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from servers import Server

from .catalogue import Design

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
SIZES = """
SELECT sum(pg_table_size(oid))::bigint, sum(pg_indexes_size(oid))::bigint
FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"""
DEAD = (
    "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(autovacuum_count), 0)::bigint FROM pg_stat_user_tables"
)


@dataclass(frozen=True)
class Rot:
    """What a run leaves behind."""

    dead: int
    vacuums: int
    table_bytes: int
    index_bytes: int


@dataclass(frozen=True)
class Database:
    url: str
    postmaster: int | None = None

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def wal(self) -> int:
        """Bytes of write-ahead log since the server was made."""
        return int(self._value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"))

    def rot(self) -> Rot:
        with self.connect() as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            return Rot(*connection.execute(DEAD).fetchone(), *connection.execute(SIZES).fetchone())

    def open_jobs(self) -> int:
        return int(self._value("SELECT count_open()"))

    def ended_jobs(self) -> int:
        return int(self._value("SELECT count_ended()"))

    def claim_buffers(self, queue: str, task: str, wanted: int, mark: tuple[int, int, str]) -> int:
        """Pages that the scan of one claim touches. The second call counts: the first also reads the catalogue."""
        text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(*) FROM scan(%s, %s, %s, %s, %s, %s::uuid)"
        with psycopg.ClientCursor(self.connect()) as cursor:
            for _ in range(2):
                plan = cursor.execute(text, (queue, task, wanted, *mark)).fetchone()[0][0]["Plan"]
            cursor.connection.close()
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def server_seconds(self) -> float:
        """CPU that the server's processes have used so far; 0 where that cannot be seen."""
        return 0.0 if self.postmaster is None else _cpu_seconds(self.postmaster)

    @contextmanager
    def snapshot_held(self) -> Iterator[None]:
        """Another session that looks at the database as it was, and does not stop."""
        with psycopg.connect(self.url) as session:
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            session.execute("SELECT count(*) FROM pg_class")
            yield

    def _value(self, query: str) -> object:
        with self.connect() as connection:
            return connection.execute(query).fetchone()[0]


@contextmanager
def fresh(server: Server, design: Design, *, tuned: bool, batch: int) -> Iterator[Database]:
    """An empty database with the tables and functions of the design, dropped afterwards."""
    name = f"perdure_designs_{secrets.token_hex(6)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        connection.execute("CHECKPOINT")
    url = urlsplit(server.url)._replace(path=f"/{name}").geturl()
    database = Database(url, server.process.pid if server.process else None)
    with database.connect() as connection:
        connection.execute(design.sql(tuned=tuned, batch=batch).encode())
    try:
        yield database
    finally:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _cpu_seconds(postmaster: int) -> float:
    """Of the server's first process, its children, and those of its children that have ended."""
    while True:
        first = _ticks(postmaster)
        children = sum(
            sum(_ticks(int(stat.parent.name), of=postmaster)[:2]) for stat in Path("/proc").glob("[0-9]*/stat")
        )
        if (
            _ticks(postmaster)[2:] == first[2:]
        ):  # else a child has ended meanwhile, and may be counted twice or not at all
            return (sum(first) + children) / TICKS


def _ticks(process: int, of: int | None = None) -> tuple[int, int, int, int]:
    """User and system time of a process, then of its children that have ended; nothing if it is no child `of` that one."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0, 0, 0  # it has ended meanwhile
    if of not in (None, int(fields[1])):
        return 0, 0, 0, 0
    user, system, their_user, their_system = map(int, fields[11:15])
    return user, system, their_user, their_system
