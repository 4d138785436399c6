"""Rows of a SQLite file that cannot be read: reading them byte by byte, setting them aside, and what was kept of them.

The ordinary readers ask for many jobs as one JSON text. When that text cannot be read, or one of its records has a flaw,
they come here with the numbers of the rows. `sort_out` reads those one by one, sets the bad ones aside, and gives the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.core.job import FINAL
from perdure.core.record import Record
from perdure.storage.contract import Unreadable
from perdure.storage.rules.records import is_parked
from perdure.storage.rules.unreadable import Mended, is_leased, kept_entry, log_set_aside, mend, raw_text, read_row

from ..connection.driver import Connection
from ..connection.writer import Work
from ..edges import edges
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.raw_rows import Row, rows_of
from ..reading.records import POLICY, Many, json_text, lists_of, position_of
from ..reading.transfer import put
from ..writing.policies import number_of

_sql = load("unreadable")
_KEEP = Many(_sql["keep"], 5, (20, 4, 1))
_PUT_IN_PLACE = Many(_sql["put_in_place"], 4, (100, 10, 1))


def sort_out(work: Work, numbers: Sequence[int], now: int, *, unless_leased: bool = False) -> tuple[list[Record], int]:
    """The jobs in these rows that can be read, in this order, and how many of the others were set aside. `unless_leased`: a
    job that somebody runs is left as it is."""
    rows = rows_of(work.connection, numbers)
    put_right = _mend_policies(work, rows, now)
    if put_right:
        rows = rows_of(work.connection, numbers)
    sound: list[Record] = []
    bad: list[tuple[Row, Mended]] = []
    for row in rows:
        record, flaws = read_row(row.values, now)
        if not flaws:
            sound.append(record)
        elif not (unless_leased and "id" not in flaws and is_leased(record, now)):
            bad.append((row, mend(row.values, now)))
    _set_aside(work, bad, now)
    put_right += _put_in_place(work, rows, sound)
    return sound, len(bad) + put_right


def _set_aside(work: Work, bad: Sequence[tuple[Row, Mended]], now: int) -> None:
    if not bad:
        return
    keep(work, ((_name(row.values.get("id")), "jobs", fields, row.values) for row, (_, fields) in bad), now)
    numbers = json_text([row.number for row, _ in bad])
    work.connection.change(_sql["remove"], (numbers,))
    work.connection.change(_sql["remove_bodies"], (numbers,))
    records = [record for _, (record, fields) in bad if "id" not in fields]
    put(work, records)
    edges.close_all(work, {record.id for record in records if record.state in FINAL})
    work.changed = True
    work.ready |= {record.queue for record in records if record.limits is not None}


def keep(work: Work, rows: Iterable[tuple[str, str, Sequence[str], dict[str, Any]]], now: int) -> None:
    """Keep rows as they were found: the name, the table, the fields that cannot be read, and the values of each."""
    values: list[tuple[Any, ...]] = []
    for id, place, fields, raw in rows:
        values.append((id, now, place, json_text(list(fields)), raw_text(raw)))
        log_set_aside(place, id, fields)
    _KEEP.run(work.connection, values)


def _name(value: object) -> str:
    """The name of a row in what is kept of it."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _mend_policies(work: Work, rows: Sequence[Row], now: int) -> int:
    """Policies of these jobs that are lost: many jobs have them in common, and go on with the defaults in place of what
    cannot be read. A policy's number is made of what it says, so that one which was written like this is told from one
    that was changed: the former is a flaw of the job that came with it."""
    mended: dict[int, tuple[Any, ...]] = {}
    lost: list[tuple[str, str, Sequence[str], dict[str, Any]]] = []
    for row in rows:
        number = row.values["policy"]
        record, flaws = read_row(row.values, now)
        if row.body is None or type(number) is not int or number in mended or not {*flaws} & {*POLICY}:
            continue
        if number == _number_of(row.values):
            continue
        mended[number] = tuple(getattr(record, name) for name in POLICY)
        bad = [name for name in flaws if name in POLICY]
        lost.append((str(number), "policies", bad, {name: row.values[name] for name in POLICY}))
    for number, policy in mended.items():
        work.connection.change(_sql["replace_policy"], (number, *policy))
        work.hints.heads.clear()
    keep(work, lost, now)
    return len(mended)


def _number_of(values: dict[str, Any]) -> int | None:
    """The number that a policy has by what it says."""
    try:
        said = [value.decode() if isinstance(value, bytes) else value for value in map(values.get, POLICY)]
    except UnicodeDecodeError:
        return None
    return number_of(tuple(said))


def _put_in_place(work: Work, rows: Sequence[Row], sound: Sequence[Record]) -> int:
    """Readable jobs that stand in another place than their state says: no claim would find them there."""
    by_id = {record.id: record for record in sound}
    moved: list[tuple[Any, ...]] = []
    for row in rows:
        record = by_id.get(_name(row.values["id"]))
        if record is None:
            continue
        if not row.is_in_position(record):
            parked = record.state is State.READY and record.limits is not None
            position = position_of(record.state.value, parked=parked, suspect=record.suspect)
            moved.append((row.number, *position, int(parked)))
            work.ready.add(record.queue)
    _PUT_IN_PLACE.run(work.connection, moved)
    numbers = json_text([row.number for row in rows])
    register_gates(work, lists_of(work.connection.value(_sql["without_gate"], (numbers,))))
    return len(moved) + _lead_edges(work, numbers)


def _lead_edges(work: Work, numbers: str) -> int:
    """Blocked jobs whose edges are lost: make all of them again from what they were enqueued to wait for. Note parents that
    do not know of their followers, and jobs that wait for nobody, too. Gives how many that were."""
    work.connection.change(_sql["remove_edges"], (numbers,))
    lost = lists_of(work.connection.value(_sql["waits"], (numbers,)))
    if lost:
        edges.put(work, [(parent, child, run_when) for child, parent, run_when in lost])
        work.connection.change(_sql["count_waits"], (json_text(sorted({child for child, _, _ in lost})),))
    unaware = sorted(
        {*(parent for _, parent, _ in lost), *lists_of(work.connection.value(_sql["unaware"], (numbers,)))}
    )
    if unaware:
        edges.follow(work, unaware)
        work.connection.change(_sql["note_unresolved"], (json_text(unaware),))
    idle = lists_of(work.connection.value(_sql["waits_for_nobody"], (numbers,)))
    if idle:
        work.connection.change(_sql["note_unplaced"], (json_text(idle),))
    return max(len(lost), len(unaware)) + len(idle)


# ---- what was kept ---------------------------------------------------------------------------------
_fields = msgspec.json.Decoder(tuple[str, ...])


def kept(connection: Connection, ids: Sequence[str] | None, limit: int) -> list[Unreadable]:
    if ids is None:
        rows = connection.rows(_sql["kept"], (limit,))
    else:
        rows = connection.rows(_sql["kept_of"], (json_text(list(ids)),))[:limit]
    return [_kept_entry(dict(zip(("id", "at", "place", "fields", "raw"), row, strict=True))) for row in rows]


def _kept_entry(row: dict[str, Any]) -> Unreadable:
    def read() -> Unreadable:
        return Unreadable(
            row["id"].decode(), row["at"], row["place"].decode(), _fields.decode(row["fields"]), row["raw"].decode()
        )

    return kept_entry(read, _name(row["id"]), row)
