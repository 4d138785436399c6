"""The raw limit: finish the last batch and claim the next in one transaction, with no handler, codec or worker.

The table has what a durable queue cannot do without: an id, a state outside the claim index once finished, a hold and a
lease. `synchronous=FULL` as in Perdure.
"""

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.payload import payload, payloads

BATCHES = (100, 500, 1_000)
LEASE = 60.0

SCHEMA = """
create table job (
    id blob primary key, queue text not null, state integer not null, rank real not null, payload text not null,
    attempt integer not null default 0, stamp integer, leased_until real, finished_at real
) strict;
create index claimable on job (queue, rank, id) where state = 0;
"""
INSERT = "insert into job (id, queue, state, rank, payload) values (?, 'default', 0, ?, ?)"
CLAIM = """
update job set state = 1, attempt = attempt + 1, stamp = ?, leased_until = ?
where rowid in (select rowid from job where queue = 'default' and state = 0 order by rank, id limit ?)
returning id, attempt, payload
"""
FINISH = "update job set state = 2, finished_at = ? where id = ? and attempt = ? and stamp = ? and state = 1"


def raw_labels() -> Sequence[str]:
    drivers = ["sqlite3", *(["apsw"] if find_spec("apsw") else [])]
    return [
        f"{driver} {journal} by {batch}" for driver in drivers for journal in ("truncate", "wal") for batch in BATCHES
    ]


def raw_rate(place: Path, label: str, jobs: int) -> dict[str, float]:
    driver, journal, _, batch = label.split()
    connection = opened(driver, place / "raw.db", journal)
    _insert(connection, jobs)
    started = time.perf_counter()
    finished = _exchange_all(connection, int(batch))
    seconds = time.perf_counter() - started
    connection.close()
    assert finished == jobs, f"{jobs} inserted, {finished} finished"
    return {"rate": jobs / seconds}


def driver_of(contender: str) -> str:
    """The driver that one of ours uses, by its key."""
    return "apsw" if contender.endswith("apsw") else "sqlite3"


def opened(driver: str, file: Path, journal: str) -> Any:
    """A connection to a new file with the table in it."""
    module = import_module(driver)
    connection = (
        module.connect(str(file), isolation_level=None) if driver == "sqlite3" else module.Connection(str(file))
    )
    list(connection.execute(f"pragma journal_mode = {journal}"))
    list(connection.execute("pragma synchronous = full"))
    for statement in SCHEMA.split(";"):
        connection.execute(statement)
    return connection


def bare_commits(connection: Any, number: int) -> float:
    """Seconds that it takes to store one job and to claim it, each in a transaction of its own."""
    began = time.perf_counter()
    connection.execute("begin immediate")
    connection.execute(INSERT, (number.to_bytes(16), float(number), payload(number)))
    connection.execute("commit")
    connection.execute("begin immediate")
    list(connection.execute(CLAIM, (number, began + LEASE, 1)))
    connection.execute("commit")
    return time.perf_counter() - began


def _insert(connection: Any, jobs: int) -> None:
    rows = [(number.to_bytes(16), float(number), text) for number, text in enumerate(payloads(jobs))]
    connection.execute("begin immediate")
    connection.executemany(INSERT, rows)
    connection.execute("commit")


def _exchange_all(connection: Any, batch: int) -> int:
    held: list[Any] = []
    finished = 0
    stamp = 0
    while True:
        now = time.time()
        connection.execute("begin immediate")
        connection.executemany(FINISH, [(now, row[0], row[1], stamp) for row in held])
        finished += len(held)
        stamp += 1
        held = list(connection.execute(CLAIM, (stamp, now + LEASE, batch)))
        connection.execute("commit")
        if not held:
            return finished
