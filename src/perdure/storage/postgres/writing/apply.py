"""Applies changes: each is accepted if its guard holds, and refused alone if not.

Ordinary successes are one guarded statement. For every other change the job's state rows are locked, in the order of their
ids, and read. The change is decided and the new row made in Python, and the state row is replaced. Jobs that a change
enqueues are inserted in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from perdure.core.job import State
from perdure.core.lifecycle import Change, KeyMove
from perdure.core.record import Hold, NewJob, Record
from perdure.storage.contract import ACCEPTED, LOG_LINES, REFUSED, Note, Refusal, Started, Verdict
from perdure.storage.rules.fast_path import are_ordinary_successes
from perdure.storage.rules.guards import check_hold, judge
from perdure.storage.rules.records import owners_among, write_change

from ..connection.server import Connection, Cursor, Statement, pipeline
from ..queries import load
from ..reading.records import (
    JOINT,
    LOOKS,
    Flawed,
    array,
    joined,
    json_text,
    marked,
    numbers,
    numbers_or_none,
    records_of,
    slot_of,
)
from .enqueue import Enqueue
from .state_rows import OUTCOMES, TABLES, WAITING, StateMoves, lane_of, table_of

GIVES_WAY = "200ms"  # the server looks for deadlocks after a second


@dataclass(slots=True)
class Effects:
    """What follows from a transaction, once it is committed."""

    ready: set[str] = field(default_factory=set)  # queues in which jobs became ready
    changed: bool = False  # a job ended or reported progress
    resolves: bool = False  # there are edges to resolve
    ranks: bool = False  # and perhaps jobs without a rank in their fair queue


class Apply:
    """The statements of one schema."""

    def __init__(self, schema: str, enqueue: Enqueue) -> None:
        self._enqueue = enqueue
        self._sql = load("apply", schema)
        self._lock = {table: load("apply", schema, table=table)["lock"] for table in TABLES}
        self._leave = {table: load("apply", schema, table=table)["leave"] for table in TABLES}
        self._wait = load("apply", schema, columns=", ".join(WAITING))["wait"]
        self._end = load("apply", schema, columns=", ".join(OUTCOMES))["end"]

    # -- plain successes -----------------------------------------------------------------------------
    def succeed(self, changes: Sequence[Change], now: int | None) -> Statement:
        """The statement for plain successes; it gives the ids of those that took hold."""
        return self._sql["succeed"], self.successes(changes, now)

    def successes(self, changes: Sequence[Change], now: int | None) -> dict[str, Any]:
        """What the statement is told of them."""
        changes = sorted(changes, key=_id)
        guards: list[Any] = [change.guard for change in changes]
        keeps = [change.keep for change in changes] or [None]
        same = keeps.count(keeps[0]) == len(keeps)
        failures = [change.failures or None for change in changes]
        return {
            "ids": array([change.id for change in changes]),
            "attempts": numbers([guard.attempt for guard in guards]),
            "stamps": numbers([guard.stamp for guard in guards]),
            "failures": numbers_or_none(failures),
            "results": joined([change.result for change in changes]),
            "keep": keeps[0] if same else None,
            "keeps": None if same else numbers(keeps),
            "begans": numbers_or_none([change.started_at for change in changes]),
            "now": now,
        }

    # -- everything else -----------------------------------------------------------------------------
    async def apply(
        self, connection: Connection, changes: Sequence[Change], effects: Effects, now: int | None
    ) -> list[Verdict]:
        """Apply changes, as if in list order, inside a transaction."""
        rows, at = await self._locked(connection, [change.id for change in changes], now)
        if adds := [job for change in changes for job in change.adds]:
            await self._enqueue.refuse_orphans(connection, adds)
        work = StateMoves(at)
        verdicts = []
        later: list[NewJob] = []  # without keys, it does not matter when they are added
        for change in changes:
            verdict = judge(rows.get(change.id), change, at)
            if verdict is ACCEPTED:
                verdict = await self._accept(connection, work, rows[change.id], change)
            verdicts.append(verdict)
            if verdict is ACCEPTED:
                later += change.adds
                if any(job.unique_key is not None for job in change.adds):
                    await self._write(connection, work, effects)
                    work = StateMoves(at)
                    owners = await self._add(connection, later, effects, now)
                    later = []
                    if change.next_id in owners:
                        going_on = {"id": change.id, "next_id": owners[change.next_id]}
                        await connection.execute(self._sql["go_on_with"], going_on)
        beside = self._enqueue.beside(later, now)
        stored = await self._write(connection, work, effects, beside)
        effects.ready |= {job.queue for job in later}
        if stored < len(later):
            await self._add(connection, later, effects, now)
        return verdicts

    async def _add(
        self, connection: Connection, jobs: Sequence[NewJob], effects: Effects, now: int | None
    ) -> dict[str, str]:
        """Put jobs on record; gives who stands for those that were duplicates."""
        placed = await self._enqueue.insert_planned(connection, jobs, now, bounded=False)
        effects.ready |= {job.queue for job in jobs}
        effects.resolves |= any(job.after is not None for job in jobs)
        return owners_among(jobs, placed)

    async def _write(
        self, connection: Connection, work: StateMoves, effects: Effects, beside: Sequence[Statement] = ()
    ) -> int:
        """Write the moves, and run these statements beside; gives how many rows those have written."""
        effects.ready |= work.ready
        effects.changed |= work.changed
        effects.resolves |= bool(work.unresolved)
        statements = [*(self._writes(work) if work.any else []), *beside]
        cursors = await pipeline(connection, statements) if statements else []
        return sum(cursor.rowcount for cursor in cursors[len(cursors) - len(beside) :])

    async def _accept(self, connection: Connection, work: StateMoves, before: Record, change: Change) -> Verdict:
        if change.key is KeyMove.TAKE and before.unique_key is not None and not before.holds_key:
            # what was freed before it in the list is free
            if work.freed:
                await connection.execute(*self._free_keys(work))
                work.freed.clear()
            values = {"key": marked(before.unique_key), "id": before.id}
            if (await connection.execute(self._sql["take_key"], values)).rowcount != 1:
                return REFUSED[Refusal.KEY_TAKEN]
        after = copy(before)
        write_change(after, change, work.now)
        work.move(before, after, change)
        return ACCEPTED

    async def _locked(
        self, connection: Connection, ids: Sequence[str], now: int | None
    ) -> tuple[dict[str, Record], int]:
        """The jobs as they stand, their moving rows locked. One that moved meanwhile is tried again."""
        array_of = array(sorted(ids))
        locked: dict[str, set[str]] = {table: set() for table in TABLES}
        records: dict[str, Record] = {}
        for _ in range(LOOKS):
            question = (self._sql["look"], {"ids": array_of, "now": now})
            locks, look = await self._lock_rows(connection, TABLES, ids, question)
            for table, cursor in zip(TABLES, locks, strict=True):
                locked[table] |= {id for (id,) in await cursor.fetchall()}
            found = await look.fetchall()
            records = {record.id: record for record in records_of([row[:-1] for row in found])}
            if all(id in locked[table_of(record)] for id, record in records.items()):
                at = found[0][-1] if found else 0
                return records, at
        raise Flawed([id for id, record in records.items() if id not in locked[table_of(record)]])

    async def _lock_rows(
        self, connection: Connection, tables: Sequence[str], ids: Sequence[str], look: Statement
    ) -> tuple[list[Cursor], Cursor]:
        """Lock rows of jobs in the order of their ids, and look. Successes go by the places of rows instead: who holds some
        of those and waits for others may be waited for himself. So he gives up long before the server looks for
        deadlocks, and everything is repeated. Of a single job nothing is held while waiting."""
        locks: list[Statement] = [(self._lock[table], {"ids": array(sorted(ids))}) for table in tables]
        if len(ids) == 1:
            *locked, looked = await pipeline(connection, [*locks, look])
            return locked, looked
        give_way, wait = ((self._sql["give_way"], {"within": within}) for within in (GIVES_WAY, "0"))
        _, *locked, _, looked = await pipeline(connection, [give_way, *locks, wait, look])
        return locked, looked

    def _writes(self, work: StateMoves) -> list[Statement]:
        statements: list[Statement] = [
            (self._leave[table], {"ids": array(sorted(ids))}) for table, ids in work.left.items() if ids
        ]
        if work.waiting:
            statements.append((self._wait, {"rows": json_text(work.waiting)}))
        if work.outcomes:
            statements.append((self._end, {"rows": json_text(work.outcomes)}))
        if work.ended_holds:
            statements.append((self._sql["end_held"], {"ids": array(sorted(work.ended_holds))}))
        if work.errors:
            ids, errors = zip(*sorted(work.errors.items()), strict=True)
            statements.append((self._sql["errors"], {"ids": array(ids), "errors": list(errors)}))
        if work.freed:
            statements.append(self._free_keys(work))
        if work.unresolved:
            statements.append((self._sql["unresolved"], {"ids": array(sorted(work.unresolved))}))
        return [*statements, *self.note_limits(work.parked, work.released)]

    def note_limits(self, parked: Iterable[Record], released: Sequence[Record]) -> list[Statement]:
        """Word for claimers of limited jobs: who waits from now on, and which holds are over."""
        lanes = {lane_of(record) for record in parked}
        statements: list[Statement] = []
        if lanes:
            rows = [dict(zip(("gate", "queue", "task", "route"), lane, strict=True)) for lane in sorted(lanes)]
            statements.append((self._sql["parked"], {"lanes": json_text(rows)}))
        if released:
            keys = {slot for each in released if (slot := slot_of(each.limits)) is not None}
            several = [each for each in released if slot_of(each.limits) is None]
            holds = {"ids": array(each.id for each in several), "stamps": numbers(each.stamp for each in several)}
            statements.append((self._sql["released"], {"keys": array(sorted(keys)), **holds}))
        return statements

    def _free_keys(self, work: StateMoves) -> Statement:
        keys, ids = zip(*sorted(work.freed.items()), strict=True)
        return self._sql["free_keys"], {"keys": [marked(key) for key in keys], "ids": array(ids)}

    # -- holds ---------------------------------------------------------------------------------------
    def started(self, started: Sequence[Started]) -> Statement:
        last = {note.hold: note.at for note in sorted(started, key=lambda note: note.hold.id)}
        return self._sql["started"], {**_holds(list(last)), "ats": numbers(last.values())}

    async def renew(
        self,
        connection: Connection,
        holds: Sequence[Hold],
        started: Sequence[Started],
        lease: int | None,
        now: int | None,
    ) -> list[Verdict]:
        statements = [self.started(started)] if started else []
        if lease is not None:
            statements.append((self._sql["lengthen"], {**_holds(sorted(holds, key=_id)), "lease": lease}))
        values = {**_holds(sorted(holds, key=_id)), "lease": lease, "now": now}
        statements.append((self._sql["renew"], values))
        cursor = (await pipeline(connection, statements))[-1]
        return await self._verdicts(connection, holds, {id for (id,) in await cursor.fetchall()})

    async def check(self, connection: Connection, holds: Sequence[Hold]) -> list[Verdict]:
        cursor = await connection.execute(self._sql["standing"], _holds(holds))
        return await self._verdicts(connection, holds, {id for (id,) in await cursor.fetchall()})

    async def check_locked(self, connection: Connection, holds: Sequence[Hold]) -> list[Verdict]:
        """Whether these holds stand, and will until the transaction is over."""
        ids = list({hold.id for hold in holds})
        _, standing = await self._lock_rows(connection, ["holds"], ids, (self._sql["standing"], _holds(holds)))
        return await self._verdicts(connection, holds, {id for (id,) in await standing.fetchall()})

    async def note(
        self, connection: Connection, notes: Sequence[Note], effects: Effects, now: int | None
    ) -> list[Verdict]:
        """Write progress and log lines, inside a transaction."""
        verdicts = await self.check_locked(connection, [note.hold for note in notes])
        heard = [note for note, verdict in zip(notes, verdicts, strict=True) if verdict is ACCEPTED]
        progress = {note.hold.id: note.progress for note in heard if note.progress is not None}
        lines = [(note.hold.id, marked(line)) for note in heard for line in note.lines]
        if progress:
            texts = {"ids": array(progress), "texts": list(progress.values())}
            await connection.execute(self._sql["progress"], texts)
            effects.changed = True
        if lines:
            given = {"ids": array(id for id, _ in lines), "lines": [line for _, line in lines]}
            await connection.execute(self._sql["log"], given)
            jobs = array(sorted({id for id, _ in lines}))
            await connection.execute(self._sql["cut_log"], {"ids": jobs, "lines": LOG_LINES})
        return verdicts

    async def holding(self, connection: Connection, worker: str, stamp: int) -> list[Record]:
        cursor = await connection.execute(self._sql["holding"], {"worker": worker, "stamp": stamp})
        records = records_of(await cursor.fetchall())
        if ended := [record.id for record in records if record.state is not State.RUNNING]:
            raise Flawed(ended)  # they have an outcome too
        return records

    async def _verdicts(self, connection: Connection, holds: Sequence[Hold], standing_ids: set[str]) -> list[Verdict]:
        """What became of each hold; those that did not come back are looked at."""
        twice = len({hold.id for hold in holds}) < len(holds)
        doubtful = [hold for hold in holds if twice or hold.id not in standing_ids]
        rows = await self.look(connection, [hold.id for hold in doubtful]) if doubtful else {}
        seen = {hold: check_hold(rows.get(hold.id), hold) for hold in doubtful}
        return [seen.get(hold, ACCEPTED) for hold in holds]

    async def look(self, connection: Connection, ids: Iterable[str]) -> dict[str, Record]:
        cursor = await connection.execute(self._sql["look"], {"ids": array(ids), "now": None})
        return {record.id: record for record in records_of([row[:-1] for row in await cursor.fetchall()])}


def are_short_successes(changes: Sequence[Change]) -> bool:
    """Plain successes that can travel in one text."""
    return are_ordinary_successes(changes) and not any(
        change.result is not None and JOINT in change.result for change in changes
    )


def _holds(holds: Sequence[Hold]) -> dict[str, Any]:
    return {
        "ids": array(hold.id for hold in holds),
        "attempts": numbers([hold.attempt for hold in holds]),
        "stamps": numbers([hold.stamp for hold in holds]),
    }


_id = attrgetter("id")
