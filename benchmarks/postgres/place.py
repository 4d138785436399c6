"""A place on the benchmark's PostgreSQL: a folder with the address of a database of its own.

The server runs as it does by default where it matters: fsync, synchronous_commit and full_page_writes are on, autovacuum
too. Only checkpoints are spread out, so that no contender pays for the pages of another.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import servers
from benchmarks.meter import note_server
from benchmarks.suite import FreshPlace, fresh_folder

SETTINGS = {"max_connections": "300", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
ADDRESS = "address"
_versions: list[str] = []


@contextmanager
def opened() -> Iterator[FreshPlace]:
    """A server for the whole run."""
    numbers = count()
    with servers.start("postgres", durable=True, settings=SETTINGS) as server:
        with connected(server.url) as connection:
            _versions[:] = connection.execute("show server_version").fetchone()

        @contextmanager
        def fresh_place() -> Iterator[Path]:
            name = f"bench_{next(numbers)}"
            with fresh_folder() as folder, connected(server.url) as connection:
                connection.execute(f"create database {name}".encode())
                connection.execute("checkpoint")
                (folder / ADDRESS).write_text(f"{server.url.rpartition('/')[0]}/{name}")
                note_server(folder, server)
                try:
                    yield folder
                finally:
                    connection.execute(f"drop database {name} with (force)".encode())

        yield fresh_place


def version_of_the_run() -> str:
    return _versions[0]


def address(place: Path) -> str:
    return (place / ADDRESS).read_text()


def written(place: Path) -> float:
    """Bytes of write-ahead log since the server began."""
    return float(scalar(place, "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


def scalar(place: Path, query: str) -> Any:
    """The one value of a query."""
    with connected(address(place)) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


def connected(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True)


@contextmanager
def old_snapshot(place: Path) -> Iterator[None]:
    """Another session that looks at the database as it is now, and keeps vacuum from what is deleted later."""
    with connected(address(place)) as connection:
        connection.execute("begin isolation level repeatable read")
        connection.execute("select count(*) from pg_class")
        yield
        connection.execute("rollback")
