"""Exports and restores jobs and kept keys, for a transfer between stores.

A restored job is written as enqueue, claim and outcome would have left it: its own row once, and the row, or rows, of its
state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from psycopg.errors import UniqueViolation

from perdure.core.job import FINAL, State
from perdure.core.record import Record
from perdure.errors import StoreError
from perdure.storage.contract import JobDump, KeptKey
from perdure.storage.rules.limits import keys_of

from ..connection.server import Connection, Statement, pipeline
from ..queries import load
from ..writing.apply import Apply, Effects
from ..writing.caller_insert import STORED_AS_NULL
from ..writing.fair_ranks import Shares
from ..writing.state_rows import OUTCOMES, TABLES, WAITING, outcome_row, waiting_row
from .records import array, digest, json_text, marked, numbers, shown_of, slot_of, unmarked

FIRST = (-(1 << 63), "00000000-0000-0000-0000-000000000000")  # before every job
JOBS = tuple(
    """
    created_at run_at lease timeout max_attempts expires_at priority min_version id chain_id task queue payload backoff
    retention dead_retention run_when key tenant routing_key tags meta unique_key unique_scope after limits errors
    """.split()  # noqa: SIM905
)
HOLDS = tuple(
    """
    stamp leased_until lease run_at rank started_at accepted_stamp version attempt failures losses waits id ended suspect
    leased_by held_key reason progress followed limited slot
    """.split()  # noqa: SIM905
)
_COLUMNS = {"jobs": JOBS, "waiting": WAITING, "holds": HOLDS, "outcomes": OUTCOMES}


class Carry:
    """The statements of one schema."""

    def __init__(self, schema: str, apply: Apply) -> None:
        self._apply = apply
        self._shares = Shares(schema)
        self._sql = load("transfer", schema)
        self._insert = {
            table: load("transfer", schema, table=table, columns=", ".join(columns))["insert"]
            for table, columns in _COLUMNS.items()
        }
        self._remove = [load("transfer", schema, table=table, column="id")["remove"] for table in (*TABLES, "jobs")]
        self._remove.append(load("transfer", schema, table="log", column="job")["remove"])

    # -- jobs ----------------------------------------------------------------------------------------
    async def export(
        self, connection: Connection, after: tuple[int, str] | None, limit: int, now: int | None
    ) -> list[JobDump]:
        created_at, id = after or FIRST
        values = {"created_at": created_at, "id": id, "limit": limit}
        records = shown_of(await (await connection.execute(self._sql["export"], values)).fetchall(), now)
        ids = {"ids": array(record.id for record in records)}
        followed = {"ids": array(record.id for record in records if record.followed)}
        asked = [(self._sql["lines"], ids), (self._sql["parents"], ids), (self._sql["kept_for"], followed)]
        logs, parents, children = [await found.fetchall() for found in await pipeline(connection, asked)]
        lines = _group((job, unmarked(line) or "") for job, line in logs)
        waits_for, kept_for = _group(parents), _group(children)
        return [
            JobDump(record, *(tuple(found.get(record.id, ())) for found in (lines, waits_for, kept_for)))
            for record in records
        ]

    async def restore(self, connection: Connection, jobs: Sequence[JobDump], effects: Effects) -> None:
        records = [job.record for job in jobs]
        ids = {"ids": array(sorted(record.id for record in records))}
        try:
            async with connection.transaction():
                await self._check_keys(connection, records)
                before = [self._sql[name] for name in ("free_keys", "close_edges", "give_up")]
                removed = {**ids, **_held(records)}
                removals: list[Statement] = [(statement, removed) for statement in (*before, *self._remove)]
                await pipeline(connection, [*removals, *self._inserts(jobs)])
        except UniqueViolation as error:  # taken since it was looked for
            raise StoreError(f"a unique key of the jobs that were brought was taken meanwhile: {error}") from error
        effects.ready |= {record.queue for record in records if record.state is State.READY}
        effects.changed |= any(record.state in FINAL for record in records)

    async def _check_keys(self, connection: Connection, records: Sequence[Record]) -> None:
        keys = {marked(record.unique_key): record.id for record in records if record.holds_key}
        ids = {record.id for record in records}
        for key, owner in await (await connection.execute(self._sql["owners"], {"keys": list(keys)})).fetchall():
            if owner not in ids:
                raise StoreError(f"the unique key of job {keys[key]} is held by job {owner}")

    def _inserts(self, jobs: Sequence[JobDump]) -> list[Statement]:
        records = [job.record for job in jobs]
        rows: dict[str, list[dict[str, Any]]] = {
            "jobs": [_job_row(record) for record in records],
            "waiting": [waiting_row(each) for each in records if each.state not in FINAL and each.stamp is None],
            "holds": [_hold_row(record) for record in records if record.stamp is not None],
            "outcomes": [outcome_row(record) for record in records if record.state in FINAL],
        }
        statements: list[Statement] = [
            (self._insert[table], {"rows": json_text(listed)}) for table, listed in rows.items() if listed
        ]
        if holders := sorted((record.unique_key or "", record.id) for record in records if record.holds_key):
            keys = {"keys": [marked(key) for key, _ in holders], "ids": array(id for _, id in holders)}
            statements.append((self._sql["take_keys"], keys))
        if lines := [(job.record.id, marked(line)) for job in jobs for line in job.lines]:
            given = {"ids": array(id for id, _ in lines), "lines": [line for _, line in lines]}
            statements.append((self._sql["insert_lines"], given))
        if edges := [(parent, job.record) for job in jobs for parent in job.waits_for]:
            between = {
                "parents": array(parent for parent, _ in edges),
                "children": array(child.id for _, child in edges),
                "finished": [child.run_when == "finished" for _, child in edges],
            }
            statements.append((self._sql["insert_edges"], between))
        if kept := [(job.record.id, child) for job in jobs for child in job.kept_for]:
            ends = {"parents": array(parent for parent, _ in kept), "children": array(child for _, child in kept)}
            statements.append((self._sql["keep_edges"], ends))
        return [*statements, *self._limited(records), *self._shares.restore(records)]

    def _limited(self, records: Sequence[Record]) -> list[Statement]:
        """What claimers of limited jobs must know of those that came."""
        statements = self._apply.note_limits([record for record in records if record.parked], [])
        held = [record for record in records if record.limits is not None and record.stamp is not None]
        several = [record for record in held if slot_of(record.limits) is None]
        if uses := [(digest(key), record) for record in several for key in keys_of([record.limits])]:
            slots = {
                "keys": array(key for key, _ in uses),
                "jobs": array(record.id for _, record in uses),
                "stamps": numbers(record.stamp for _, record in uses),
            }
            statements.append((self._sql["use"], slots))
        return statements

    # -- kept keys -----------------------------------------------------------------------------------
    async def export_keys(
        self, connection: Connection, cursor: str | None, limit: int
    ) -> tuple[list[KeptKey], str | None]:
        values = {"cursor": marked(cursor), "limit": limit + 1}
        rows = await (await connection.execute(self._sql["keys"], values)).fetchall()
        found = [KeptKey(unmarked(key) or "", job, ends) for key, job, ends in rows[:limit]]
        return found, found[-1].key if len(rows) > limit else None

    async def restore_keys(self, connection: Connection, keys: Sequence[KeptKey]) -> None:
        names = [marked(kept.key) for kept in keys]
        given = {"keys": names, "ends": numbers(kept.ends for kept in keys), "ids": array(kept.job for kept in keys)}
        async with connection.transaction():
            await pipeline(connection, [(self._sql["remove_keys"], {"keys": names}), (self._sql["insert_keys"], given)])


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for one, other in pairs:
        groups[one].append(other)
    return groups


def _held(records: Sequence[Record]) -> dict[str, str]:
    held = [record for record in records if record.stamp is not None]
    return {"held": array(record.id for record in held), "stamps": numbers(record.stamp for record in held)}


def _job_row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in JOBS}
    row |= {name: None for name, default in STORED_AS_NULL.items() if row[name] == default}
    row |= {"key": marked(record.key), "unique_key": marked(record.unique_key)}
    row["run_at"] = None if record.run_at == record.created_at else record.run_at
    return row


def _hold_row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name, None) for name in HOLDS}
    row |= {"held_key": marked(record.unique_key) if record.holds_key else None, "reason": marked(record.reason)}
    row["ended"] = record.state in FINAL
    row["limited"] = None if record.limits is None else record.queue
    row["slot"] = slot_of(record.limits)
    return row
