"""Sets jobs aside that cannot be read, and keeps their rows.

A reader that meets such a job names it (`Flawed`), and its work is repeated once the job is set aside. A claim returns the
other jobs and names the doubtful ones. Columns have types here, so a row can always be fetched; only what a value says can
be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.core.job import FINAL, WAITING, State
from perdure.core.record import Record
from perdure.storage.contract import JobDump, Unreadable
from perdure.storage.rules.unreadable import (
    LARGEST,
    Mended,
    is_leased,
    kept_entry,
    log_set_aside,
    mend,
    raw_text,
    read_row,
)

from ..connection.server import Connection, pipeline
from ..queries import load
from ..reading.records import (
    COLUMNS,
    MOST,
    NARROW,
    array,
    digest,
    json_text,
    readable_of,
    route_of,
    unmarked,
    values_of,
)
from ..reading.transfer import Carry
from ..writing.apply import Effects
from ..writing.state_rows import TABLES

PLACE = ("urgency", "queue", "task", "route", "gate", "parked")  # of a job that waits
_BESIDE = (
    "held",
    "held_lease",
    "hold_ended",
    "ended",
    "waits_there",
    "wait_state",
    "wait_expires",
    *(f"wait_{name}" for name in PLACE),
)
# what makes statements fail that tell of other jobs too: no holder could report
_BREAKING = frozenset((*NARROW, "state", "lease", "stamp"))
BEYOND = 1 << 63  # what no field can have
_json = msgspec.json.Decoder()
_fields = msgspec.json.Decoder(tuple[str, ...])


class Row(NamedTuple):
    """A job as it is stored: the values of its record, with what cannot be used made unreadable; and what stands beside."""

    id: str
    found: dict[str, Any]
    values: dict[str, Any]
    beside: dict[str, Any]

    @property
    def moves(self) -> bool:
        """Whether there is a moving row."""
        return bool(self.beside["held"] or self.beside["ended"] or self.beside["waits_there"])


def row_of(row: Sequence[Any]) -> Row:
    found = dict(zip(COLUMNS, row, strict=False))
    beside = _beside(row)
    values = values_of(row)
    values |= dict.fromkeys(_contradicted(values["state"], beside), BEYOND)
    return Row(found["id"], {**found, **beside}, values, beside)


def doubtful_among(rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[Record]]:
    """Those of these jobs that may be unreadable or out of place: a look that costs little where there are none. Gives the
    readable ones too."""
    records, doubtful = readable_of(rows)
    beside = {row[0]: _beside(row) for row in rows}
    for record in records:
        there = beside[record.id]
        if (
            _contradicted(record.state, there)
            or not _is_json(record.payload)
            or (there["waits_there"] and _belongs(record) != _stands(there))
        ):
            doubtful.append(record.id)
    return doubtful, records


def _is_json(text: str) -> bool:
    try:
        _json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def _beside(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_BESIDE, row[len(COLUMNS) :], strict=True))


def _contradicted(state: str, beside: Mapping[str, Any]) -> list[str]:
    """Fields that cannot be what they are because of what stands beside the record."""
    fields = [] if _fits(state, beside) else ["state"]
    if beside["held"] and not 0 <= beside["held_lease"] <= LARGEST:
        fields.append("lease")
    twice = beside["held"] and beside["ended"] and not beside["hold_ended"]
    if twice or (beside["waits_there"] and (beside["held"] or beside["ended"])):
        fields.append("stamp")
    if beside["wait_expires"] is not None and abs(beside["wait_expires"]) > LARGEST:
        fields.append("expires_at")
    return fields


def _fits(state: str, beside: Mapping[str, Any]) -> bool:
    """Whether the state is one of those that its moving rows can have."""
    if beside["ended"]:
        return state in FINAL
    return beside["held"] or state in WAITING


def _belongs(record: Record) -> dict[str, Any]:
    """Where a job that waits is to stand."""
    gate = None if record.limits is None else digest(record.limits)
    return {
        "urgency": -1 - record.priority,
        "queue": record.queue,
        "task": record.task,
        "route": route_of(record.routing_key),
        "gate": gate,
        "parked": gate is not None and record.state is State.READY,
    }


def _stands(beside: Mapping[str, Any]) -> dict[str, Any]:
    return {name: beside[f"wait_{name}"] for name in PLACE}


class Aside:
    """The statements of one schema."""

    def __init__(self, schema: str, carry: Carry) -> None:
        self._carry = carry
        self._sql = load("unreadable", schema)
        self._locks = [load("unreadable", schema, table=table)["lock"] for table in TABLES]

    async def sort_out(
        self,
        connection: Connection,
        ids: Iterable[str],
        now: int | None,
        effects: Effects,
        *,
        unless_leased: bool = False,
    ) -> tuple[list[Record], int]:
        """Those of these jobs that can be read, and how many of the others were set aside or put in their place.
        `unless_leased`: a job that somebody runs is left as it is, unless that makes statements fail."""
        asked = {"ids": array(sorted(set(ids)))}
        async with connection.transaction():
            cursors = await pipeline(connection, [(lock, asked) for lock in self._locks])
            locked = {id for cursor in cursors for (id,) in await cursor.fetchall()}
            found = await (await connection.execute(self._sql["rows"], asked)).fetchall()
            at = await self.now(connection, now)
            sound: list[Record] = []
            bad: list[tuple[Row, Mended]] = []
            misplaced: list[Record] = []
            for row in map(row_of, found):
                record, flaws = read_row(row.values, at)
                if not flaws:
                    sound.append(_unmarked(record))
                    if row.beside["waits_there"] and row.id in locked and _stands(row.beside) != _belongs(record):
                        misplaced.append(record)
                elif not (unless_leased and is_leased(record, at) and _BREAKING.isdisjoint(flaws)) and (
                    row.id in locked or not row.moves
                ):
                    bad.append((row, mend(row.values, at)))
            await self._set_aside(connection, bad, now, effects)
            for record in misplaced:
                await connection.execute(self._sql["put_in_place"], {"id": record.id, **_belongs(record)})
                effects.ready.add(record.queue)
        return sound, len(bad) + len(misplaced)

    async def _set_aside(
        self, connection: Connection, bad: Sequence[tuple[Row, Mended]], now: int | None, effects: Effects
    ) -> None:
        if not bad:
            return
        await self.keep(connection, [(row.id, "jobs", fields, row.found) for row, (_, fields) in bad], now)
        ids = {"ids": array(sorted(row.id for row, _ in bad))}
        lines: dict[str, list[str]] = {}
        for job, line in await (await connection.execute(self._sql["lines"], ids)).fetchall():
            lines.setdefault(job, []).append(unmarked(line) or "")
        records = [_that_fits(record) for _, (record, _) in bad]
        await self._carry.restore(
            connection, [JobDump(record, tuple(lines.get(record.id, ()))) for record in records], effects
        )
        await connection.execute(self._sql["unsettle"], ids)
        effects.resolves = True
        effects.ready |= {record.queue for record in records if record.limits is not None}

    async def keep(
        self, connection: Connection, rows: Sequence[tuple[str, str, Sequence[str], Mapping[str, Any]]], now: int | None
    ) -> None:
        """Keep rows as they were found: the name, the table, the fields that cannot be read, and the values of each."""
        if not rows:
            return
        ids, places, fields, found = zip(*rows, strict=True)
        values = {
            "ids": list(ids),
            "places": list(places),
            "fields": [json_text(list(each)) for each in fields],
            "raws": [raw_text(each) for each in found],
            "now": now,
        }
        await connection.execute(self._sql["keep"], values)
        for id, place, bad, _ in rows:
            log_set_aside(place, id, bad)

    async def kept(self, connection: Connection, ids: Sequence[str] | None, limit: int) -> list[Unreadable]:
        asked = "kept" if ids is None else "kept_of"
        cursor = await connection.execute(self._sql[asked], {"ids": list(ids or ()), "limit": limit})
        return [_kept_entry(*row) for row in await cursor.fetchall()]

    async def now(self, connection: Connection, now: int | None) -> int:
        if now is not None:
            return now
        at: int = (await (await connection.execute(self._sql["now"], {"now": None})).fetchall())[0][0]
        return at


def _kept_entry(id: str, at: int, place: str, fields: str, raw: str) -> Unreadable:
    found = {"id": id, "at": at, "place": place, "fields": fields, "raw": raw}
    return kept_entry(lambda: Unreadable(id, at, place, _fields.decode(fields), raw), id, found)


def _unmarked(record: Record) -> Record:
    record.key = unmarked(record.key)
    record.unique_key = unmarked(record.unique_key)
    record.reason = unmarked(record.reason)
    return record


def _that_fits(record: Record) -> Record:
    """A mended record as the columns can hold it."""
    record = _unmarked(record)
    record.version = min(record.version, MOST)
    record.holds_key = record.holds_key and record.unique_key is not None
    return record
