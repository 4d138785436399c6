"""Exports jobs and kept keys to another store, and restores them from one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from perdure.core.job import FINAL, State
from perdure.core.record import Record
from perdure.errors import StoreError
from perdure.storage.contract import JobDump, KeptKey

from ..connection.driver import Connection
from ..connection.work import Work
from ..edges import edges
from ..limits.limit_gates import register_gates
from ..queries import load
from ..writing import fair_ranks
from ..writing.policies import number_of, policy_of, store_policies
from .raw_rows import records_for_readers, records_or_numbers
from .records import BODY, COLUMNS, RECORD, Many, json_text, position_of

FIRST = (-(1 << 63), "")  # before every job

_sql = load(
    "transfer",
    record=RECORD,
    columns=", ".join(COLUMNS),
    body=", ".join(BODY),
    input_columns=", ".join(f"input.{field}" for field in BODY),
)
_NUMBERS = load("transfer", record="number")["export"]
_JOBS = Many(_sql["insert"], len(COLUMNS) + 3, (100, 20, 5, 1))
_BODIES = Many(_sql["insert_bodies"], len(BODY) + 1, (100, 20, 5, 1))
_LINES = Many(_sql["insert_lines"], 2, (500, 100, 20, 4, 1))
_OWNERS = Many(_sql["owners"], 1)
_REMOVE_KEYS = Many(_sql["remove_keys"], 1)
_KEYS = Many(_sql["insert_keys"], 4, (500, 100, 20, 4, 1))


def export(connection: Connection, after: tuple[int, str] | None, limit: int, now: int) -> list[JobDump]:
    created_at, id = after or FIRST
    asked = {"created_at": created_at, "id": id, "limit": limit}
    records, unread = records_or_numbers(lambda statement: connection.value(statement, asked), _sql["export"], _NUMBERS)
    records = records_for_readers(connection, unread, now) if unread else records
    ids = [record.id for record in records]
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for job, line in connection.rows(_sql["lines"], (json_text(ids),)):
        lines[job].append(line.decode("utf-8", "backslashreplace"))
    waits_for = edges.parents(connection, ids)
    kept_for = edges.unfinished_children(connection, [record.id for record in records if record.followed])
    return [
        JobDump(record, *(tuple(found.get(record.id, ())) for found in (lines, waits_for, kept_for)))
        for record in records
    ]


def restore(work: Work, jobs: Sequence[JobDump]) -> str | None:
    """Store jobs as they are. Returns why not, if another job holds the key of one of them; then nothing was written."""
    records = [job.record for job in jobs]
    ids = {record.id for record in records}
    keys = {record.unique_key: record for record in records if record.holds_key}
    for key, owner in _OWNERS.rows(work.connection, [(key,) for key in keys]):
        if owner not in ids:
            return f"the unique key of job {keys[key].id} is held by job {owner}"
    for statement in ("remove", "remove_lines"):
        work.connection.change(_sql[statement], (json_text(sorted(ids)),))
    insert(work, records)
    _LINES.run(work.connection, [(job.record.id, line) for job in jobs for line in job.lines])
    edges.restore(work, jobs)
    fair_ranks.restore(work, records)
    register_gates(work, [record.id for record in records if record.parked])
    work.ready |= {record.queue for record in records if record.state is State.READY}
    work.changed |= any(record.state in FINAL for record in records)
    return None


def insert(work: Work, records: Sequence[Record]) -> None:
    """Insert the rows of jobs that are not stored."""
    store_policies(work.connection, map(policy_of, records))
    _JOBS.run(work.connection, [_row(record) for record in records])
    _BODIES.run(work.connection, [_body(record) for record in records])


def _row(record: Record) -> list[Any]:
    position = position_of(record.state.value, parked=record.parked, suspect=record.suspect)
    values = [*(getattr(record, name) for name in COLUMNS), *position, record.followed]  # its edges may come later
    return [value.value if isinstance(value, State) else value for value in values]


def _body(record: Record) -> list[Any]:
    policy = number_of(policy_of(record))
    return [record.id, *(policy if name == "policy" else getattr(record, name) for name in BODY)]


def export_keys(connection: Connection, cursor: str | None, limit: int) -> tuple[list[KeptKey], str | None]:
    rows = connection.rows(_sql["keys"], {"after": cursor, "limit": limit + 1})
    found = [KeptKey(key, job, ends) for key, job, ends, _ in rows[:limit]]
    return found, found[-1].key if len(rows) > limit else None


def restore_keys(work: Work, keys: Sequence[KeptKey]) -> None:
    _REMOVE_KEYS.run(work.connection, [(kept.key,) for kept in keys])
    _KEYS.run(work.connection, [(kept.key, kept.job, kept.ends, 0) for kept in keys])


def raise_refusal(why: str | None) -> None:
    if why is not None:
        raise StoreError(why)
