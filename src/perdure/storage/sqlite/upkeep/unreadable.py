"""Sets rows aside that cannot be read, and lists what was set aside.

Other modules read many jobs as one JSON text. If that text cannot be read, or one of its records has a flaw, they call
`sort_out` with the numbers of the rows. It reads those column by column, sets the bad ones aside, and returns the rest.
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
from ..connection.work import Work
from ..edges import edges
from ..limits.limit_gates import register_gates
from ..queries import load
from ..reading.raw_rows import Row, rows_of
from ..reading.records import POLICY, Many, json_text, lists_of, position_of
from ..reading.transfer import insert
from ..writing.policies import number_of

_sql = load("unreadable")
_KEEP = Many(_sql["keep"], 5, (20, 4, 1))
_CORRECT = Many(_sql["correct_positions"], 4, (100, 10, 1))


def sort_out(work: Work, numbers: Sequence[int], now: int, *, unless_leased: bool = False) -> tuple[list[Record], int]:
    """The jobs in these rows that can be read, in this order, and how many rows were set aside or put right.
    `unless_leased`: leave jobs that are running."""
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
    _replace_bad(work, bad, now)
    put_right += _correct_positions(work, rows, sound)
    return sound, len(bad) + put_right


def _replace_bad(work: Work, bad: Sequence[tuple[Row, Mended]], now: int) -> None:
    if not bad:
        return
    set_aside(work, ((_name(row.values.get("id")), "jobs", fields, row.values) for row, (_, fields) in bad), now)
    numbers = json_text([row.number for row, _ in bad])
    work.connection.change(_sql["remove"], (numbers,))
    work.connection.change(_sql["remove_bodies"], (numbers,))
    records = [record for _, (record, fields) in bad if "id" not in fields]
    insert(work, records)
    edges.close_all(work, {record.id for record in records if record.state in FINAL})
    work.changed = True
    work.ready |= {record.queue for record in records if record.limits is not None}


def set_aside(work: Work, rows: Iterable[tuple[str, str, Sequence[str], dict[str, Any]]], now: int) -> None:
    """Store rows as they were found: the name, the table, the fields that cannot be read, and the values of each."""
    values: list[tuple[Any, ...]] = []
    for id, table, fields, raw in rows:
        values.append((id, now, table, json_text(list(fields)), raw_text(raw)))
        log_set_aside(table, id, fields)
    _KEEP.run(work.connection, values)


def _name(value: object) -> str:
    """The id of a row as text."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _mend_policies(work: Work, rows: Sequence[Row], now: int) -> int:
    """Put the defaults in place of values that cannot be read, in policies of these jobs, which many jobs share. A policy
    whose number is the hash of its values was written like this; then the flaw is one of the job."""
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
    set_aside(work, lost, now)
    return len(mended)


def _number_of(values: dict[str, Any]) -> int | None:
    """The number that a policy has by what it says."""
    try:
        said = [value.decode() if isinstance(value, bytes) else value for value in map(values.get, POLICY)]
    except UnicodeDecodeError:
        return None
    return number_of(tuple(said))


def _correct_positions(work: Work, rows: Sequence[Row], sound: Sequence[Record]) -> int:
    """Correct the indexed columns of jobs whose state says otherwise: no claim would find them."""
    by_id = {record.id: record for record in sound}
    moved: list[tuple[Any, ...]] = []
    for row in rows:
        record = by_id.get(_name(row.values["id"]))
        if record is None:
            continue
        if not row.is_in_position(record):
            parked = is_parked(record.state, record.limits)
            position = position_of(record.state.value, parked=parked, suspect=record.suspect)
            moved.append((row.number, *position, int(parked)))
            work.ready.add(record.queue)
    _CORRECT.run(work.connection, moved)
    numbers = json_text([row.number for row in rows])
    register_gates(work, lists_of(work.connection.value(_sql["without_gate"], (numbers,))))
    return len(moved) + _restore_edges(work, numbers)


def _restore_edges(work: Work, numbers: str) -> int:
    """Restore lost edges of blocked jobs from what they were enqueued to wait for. Put parents that are not marked as
    followed, and jobs that wait for no parent, on the list of what is to be resolved. Returns how many there were."""
    work.connection.change(_sql["remove_edges"], (numbers,))
    lost = lists_of(work.connection.value(_sql["waits"], (numbers,)))
    if lost:
        edges.put(work, [(parent, child, run_when) for child, parent, run_when in lost])
        work.connection.change(_sql["count_waits"], (json_text(sorted({child for child, _, _ in lost})),))
    unaware = sorted(
        {*(parent for _, parent, _ in lost), *lists_of(work.connection.value(_sql["unaware"], (numbers,)))}
    )
    if unaware:
        edges.mark_followed(work, unaware)
        work.connection.change(_sql["note_unresolved"], (json_text(unaware),))
    idle = lists_of(work.connection.value(_sql["waits_for_none"], (numbers,)))
    if idle:
        work.connection.change(_sql["note_new"], (json_text(idle),))
    return max(len(lost), len(unaware)) + len(idle)


# ---- what was set aside ------------------------------------------------------------------------------
_fields = msgspec.json.Decoder(tuple[str, ...])


def read_kept(connection: Connection, ids: Sequence[str] | None, limit: int) -> list[Unreadable]:
    if ids is None:
        rows = connection.rows(_sql["kept"], (limit,))
    else:
        rows = connection.rows(_sql["kept_of"], (json_text(list(ids)),))[:limit]
    return [_kept_entry(dict(zip(("id", "at", "table", "fields", "raw"), row, strict=True))) for row in rows]


def _kept_entry(row: dict[str, Any]) -> Unreadable:
    def read() -> Unreadable:
        return Unreadable(
            row["id"].decode(), row["at"], row["table"].decode(), _fields.decode(row["fields"]), row["raw"].decode()
        )

    return kept_entry(read, _name(row["id"]), row)
