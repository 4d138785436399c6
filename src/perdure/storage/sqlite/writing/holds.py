"""Serves the holders of jobs: renewals, checks, progress and log lines, and claims whose answer was lost."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.record import Hold, Record
from perdure.storage.contract import ACCEPTED, LOG_LINES, Note, Started, Verdict
from perdure.storage.rules.guards import check_hold

from ..connection.driver import Connection
from ..connection.work import Work
from ..queries import load
from ..reading.raw_rows import records_or_numbers
from ..reading.records import RECORD, WHOLE, Many
from .guard_rows import read, read_and_mend

_sql = load("holds", record=RECORD, whole=WHOLE)
_HELD_NUMBERS = load("holds", record="number", whole=WHOLE)["held_by"]
_STARTED = Many(_sql["started"], 4, (500, 100, 20, 4, 1), padded=True)
_RENEW = Many(_sql["renew"], 3, (500, 100, 20, 4, 1), padded=True)
_PROGRESS = Many(_sql["progress"], 2, (100, 10, 1))
_LOG = Many(_sql["log"], 2, (100, 10, 1))


def recover_claim(connection: Connection, worker: str, stamp: int) -> tuple[list[Record], list[int]]:
    """The jobs that this worker holds under this stamp; or the numbers of their rows if one of them cannot be read."""
    holder = {"worker": worker, "stamp": stamp}
    return records_or_numbers(lambda text: connection.value(text, holder), _sql["held_by"], _HELD_NUMBERS)


def note_started(work: Work, started: Sequence[Started]) -> None:
    """Write when these handlers started."""
    rows = [(note.hold.id, note.hold.attempt, note.hold.stamp, note.at) for note in started]
    _STARTED.run(work.connection, rows)


def renew(work: Work, holds: Sequence[Hold], started: Sequence[Started], lease: int | None, now: int) -> list[Verdict]:
    """Renew the leases of valid holds. `started`: handlers that have started, noted in the same transaction."""
    note_started(work, started)
    rows = [(hold.id, hold.attempt, hold.stamp) for hold in holds]
    if _RENEW.run(work.connection, rows, lease, now, lease) == len(rows):
        return [ACCEPTED] * len(rows)
    found = read_and_mend(work, [hold.id for hold in holds], now)
    return [check_hold(found.get(hold.id), hold) for hold in holds]


def check(connection: Connection, holds: Sequence[Hold]) -> list[Verdict]:
    found = read(connection, [hold.id for hold in holds])
    return [check_hold(found.get(hold.id), hold) for hold in holds]


def note(work: Work, notes: Sequence[Note], now: int) -> list[Verdict]:
    """Write progress and log lines of the holds that are valid."""
    found = read_and_mend(work, [note.hold.id for note in notes], now)
    verdicts = [check_hold(found.get(note.hold.id), note.hold) for note in notes]
    accepted = [note for note, verdict in zip(notes, verdicts, strict=True) if verdict.accepted]
    # the last progress of each job: of several rows for one job an UPDATE may take any
    progress = {note.hold.id: note.progress for note in accepted if note.progress is not None}
    if _PROGRESS.run(work.connection, list(progress.items())):
        work.changed = True
    lines = [(note.hold.id, line) for note in accepted for line in note.lines[-LOG_LINES:]]
    _LOG.run(work.connection, lines)
    for id in {id for id, _ in lines}:
        work.connection.change(_sql["cut_log"], {"job": id, "kept": LOG_LINES})
    return verdicts
