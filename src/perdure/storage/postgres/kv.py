"""Stores kv entries: named texts under guards.

A write first locks the holds that it depends on, then the rows that it writes, in the order of their names. If another
session inserts the same entry meanwhile, everything is rolled back and tried again; then it sees that entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.record import NewJob
from perdure.storage.contract import ACCEPTED, KvEntry, KvWrite

from .connection.server import Connection, Statement, pipeline
from .queries import load
from .reading.records import array, marked, numbers, unmarked
from .writing.apply import Apply
from .writing.enqueue import Enqueue

Place = tuple[str, str]


class _Outrun(Exception):
    """Another session put up the same text while we were about to."""


class KvEntries:
    """The statements of one schema."""

    def __init__(self, schema: str, enqueue: Enqueue, apply: Apply) -> None:
        self._enqueue = enqueue
        self._apply = apply
        self._sql = load("kv", schema)

    async def look(
        self,
        connection: Connection,
        kind: str,
        names: Sequence[str] | None,
        job: str | None,
        due: bool,
        limit: int,
        now: int | None,
    ) -> list[KvEntry]:
        which = "named" if names is not None else "due" if due else "first" if job is None else "of_job"
        values = {"kind": marked(kind), "names": [marked(name) for name in names or ()], "job": job}
        return await self._rows(connection, which, **values, limit=limit, now=now)

    async def write(
        self, connection: Connection, writes: Sequence[KvWrite], now: int | None
    ) -> tuple[list[bool], list[NewJob]]:
        """Write what takes hold, in a transaction of its own; gives which did, and the jobs that came with it."""
        while True:
            try:
                async with connection.transaction():
                    return await self._write(connection, writes, now)
            except _Outrun:
                continue

    async def _write(
        self, connection: Connection, writes: Sequence[KvWrite], now: int | None
    ) -> tuple[list[bool], list[NewJob]]:
        holds = [write.hold for write in writes if write.hold is not None]
        verdicts = await self._apply.check_locked(connection, holds) if holds else []
        valid = {hold for hold, verdict in zip(holds, verdicts, strict=True) if verdict is ACCEPTED}
        known = await self._lock(connection, writes)
        versions = dict(known)
        rows: dict[Place, KvEntry | None] = {}
        done = []
        for write in writes:
            place = (write.kind, write.name)
            holds_still = write.hold is None or write.hold in valid
            done.append(holds_still and write.version in (None, versions.get(place, 0)))
            if done[-1]:
                rows[place] = row = _written(write, versions.get(place, 0))
                versions[place] = 0 if row is None else row.version
        jobs = [job for write, taken in zip(writes, done, strict=True) if taken for job in write.jobs]
        if jobs:
            await self._enqueue.insert_planned(connection, jobs, now)
        await self._put(connection, rows, known)
        return done, jobs

    async def _lock(self, connection: Connection, writes: Sequence[KvWrite]) -> dict[Place, int]:
        places = sorted({(write.kind, write.name) for write in writes})
        rows = await (await connection.execute(self._sql["lock"], _names(places))).fetchall()
        found = {(kind, name): version for kind, name, version in rows}
        marks = {(marked(kind), marked(name)): (kind, name) for kind, name in places}
        return {marks[place]: version for place, version in found.items()}

    async def _put(self, connection: Connection, rows: dict[Place, KvEntry | None], known: dict[Place, int]) -> None:
        fresh = [row for place, row in rows.items() if row is not None and place not in known]
        again = [row for place, row in rows.items() if row is not None and place in known]
        gone = [place for place, row in rows.items() if row is None and place in known]
        statements: list[Statement] = []
        if again:
            statements.append((self._sql["put"], _columns(again)))
        if gone:
            statements.append((self._sql["take_off"], _names(gone)))
        if statements:
            await pipeline(connection, statements)
        if fresh and (await connection.execute(self._sql["add"], _columns(fresh))).rowcount != len(fresh):
            raise _Outrun

    async def _rows(self, connection: Connection, which: str, **values: Any) -> list[KvEntry]:
        rows = await (await connection.execute(self._sql[which], values)).fetchall()
        return [_entry_of(*row) for row in rows]

    # -- moving house --------------------------------------------------------------------------------
    async def export(self, connection: Connection, after: Place | None, limit: int) -> list[KvEntry]:
        kind, name = after or (None, None)
        return await self._rows(connection, "export", kind=marked(kind), name=marked(name), limit=limit)

    async def restore(self, connection: Connection, rows: Sequence[KvEntry]) -> None:
        last = {(row.kind, row.name): row for row in rows}
        if last:
            await connection.execute(self._sql["put"], _columns(list(last.values())))


def _entry_of(kind: str, name: str, text: str, version: int, due_at: int | None, job: str | None) -> KvEntry:
    texts = [unmarked(each) or "" for each in (kind, name, text)]
    return KvEntry(texts[0], texts[1], texts[2], version, due_at, job)


def _written(write: KvWrite, before: int) -> KvEntry | None:
    if write.text is None:
        return None
    return KvEntry(write.kind, write.name, write.text, before + 1, write.due_at, write.job)


def _names(places: Sequence[Place]) -> dict[str, Any]:
    return {"kinds": [marked(kind) for kind, _ in places], "names": [marked(name) for _, name in places]}


def _columns(rows: Sequence[KvEntry]) -> dict[str, Any]:
    return {
        **_names([(row.kind, row.name) for row in rows]),
        "texts": [marked(row.text) for row in rows],
        "versions": numbers(row.version for row in rows),
        "dues": numbers(row.due_at for row in rows),
        "jobs": array(row.job or "NULL" for row in rows),
    }
