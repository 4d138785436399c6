"""Applying changes: each takes hold if its guard does, and is refused alone if not.

Plain successes are written by one guarded statement. When it touches fewer rows than it should, the whole piece of
work is undone and done again carefully. Every other change is judged in Python by what the rows say under the write
lock, and then written, with the jobs that it adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import Change, HoldGuard, KeyMove
from perdure.core.record import Hold, NewJob, Record
from perdure.storage.contract import (
    ACCEPTED,
    LOG_LINES,
    REFUSED,
    MissingParent,
    Note,
    Refusal,
    Started,
    Verdict,
)
from perdure.storage.rules.fairness import SHARE
from perdure.storage.rules.fast_path import are_ordinary_successes, is_ordinary_success
from perdure.storage.rules.guards import check_hold, judge
from perdure.storage.rules.records import owners_among

from .driver import Connection
from .enqueue import PreparedJobs, check_parents, enqueue, special_queues
from .fast_success import Successes
from .limit_gates import register_gates
from .queries import load
from .raw_rows import records_or_numbers
from .records import RECORD, WHOLE, Many, json_text, lists_of, stands
from .unreadable import sort_out
from .writer import RetryRowByRow, Work

_sql = load("apply", record=RECORD, whole=WHOLE)
_MOVE = Many(_sql["move"], 22, (100, 10, 1))
_MOVE_ON = Many(_sql["move_on"], 3, (100, 10, 1))
_LET_GO = Many(_sql["let_go"], 1, (100, 10, 1))
_STARTED = Many(_sql["started"], 4, (500, 100, 20, 4, 1), padded=True)
_RENEW = Many(_sql["renew"], 3, (500, 100, 20, 4, 1), padded=True)
_PROGRESS = Many(_sql["progress"], 2, (100, 10, 1))
_LOG = Many(_sql["log"], 2, (100, 10, 1))
_HELD_NUMBERS = load("apply", record="number", whole=WHOLE)["holding"]


class GuardRow(msgspec.Struct, array_like=True):
    """A row as far as guards look at it. Kept up to date while the changes of one call are gone through."""

    id: str
    queue: str
    state: State
    version: int
    attempt: int
    stamp: int | None
    accepted_stamp: int | None
    hidden: bool
    leased_by: str | None
    leased_until: int | None
    run_at: int
    rank: int
    finished_at: int | None
    unique_key: str | None
    holds_key: bool
    limited: bool


_seen = msgspec.json.Decoder(list[GuardRow], strict=False)


class PreparedChanges:
    """Changes on their way to the writer. The loop makes ready what it can: its thread then has little to do but to wait for
    SQLite, which needs no interpreter."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.all = changes
        all_plain = are_ordinary_successes(changes)  # as nearly always
        self.plain = changes if all_plain else [change for change in changes if is_ordinary_success(change)]
        self.adds = [job for change in changes for job in change.adds] if len(self.plain) < len(changes) else []
        self._successes = Successes(self.plain)

    def succeed(self, work: Work, now: int) -> None:
        """Write the plain successes; all of them take hold, or it is to be done carefully."""
        if work.known.limited and work.connection.value(_sql["any_closed"]):
            ids = json_text([change.id for change in self.plain])
            work.ready.update(lists_of(work.connection.value(_sql["limited_queues"], (ids,))))
        if not self._successes.write(work, now):
            raise RetryRowByRow
        work.changed = True


def orphan_among(work: Work, adds: Sequence[NewJob]) -> MissingParent | None:
    """A job that one of the changes would add without its parent being on record: then nothing is to be written."""
    try:
        check_parents(work.connection, adds)
    except MissingParent as orphan:
        return orphan
    return None


def apply(work: Work, changes: PreparedChanges, now: int) -> list[Verdict]:
    """Apply the changes and say of each what became of it."""
    plain = [] if work.careful else changes.plain
    if plain and len(plain) == len(changes.all):
        changes.succeed(work, now)
        return [ACCEPTED] * len(plain)
    # a key can be taken only in the order of the list, so one such change makes all of them wait for their place
    if plain and not any(change.key is KeyMove.TAKE for change in changes.all):
        changes.succeed(work, now)
    else:
        plain = []
    done = {change.id for change in plain}
    others = [change for change in changes.all if change.id not in done]
    verdicts = _ChangeBatch(work, others, now).verdicts()
    return [ACCEPTED if change.id in done else verdicts[change.id] for change in changes.all]


class _ChangeBatch:
    """The changes of one call, gone through in order."""

    def __init__(self, work: Work, changes: Sequence[Change], now: int) -> None:
        self._work = work
        self._changes = changes
        self._now = now
        self._rows = look_and_mend(work, [change.id for change in changes], now)
        self._moved: list[tuple[Any, ...]] = []
        self._moved_on: list[tuple[Any, ...]] = []
        self._let_go: list[tuple[Any, ...]] = []
        self._parked: list[str] = []
        self._added: list[NewJob] = []  # these may wait for the end of the list
        self._special = special_queues(work.connection) if any(change.adds for change in changes) else {}

    def verdicts(self) -> dict[str, Verdict]:
        verdicts = {}
        for change in self._changes:
            row = self._rows.get(change.id)
            verdicts[change.id] = verdict = self._judged(row, change)
            if row is not None and verdict is ACCEPTED:
                self._write(row, change)
                self._add(change)
        self._flush()
        self._place()
        return verdicts

    def _judged(self, row: GuardRow | None, change: Change) -> Verdict:
        verdict = judge(row, change, self._now)
        if verdict is ACCEPTED and row is not None and change.key is KeyMove.TAKE and not self._can_take_key(row):
            return REFUSED[Refusal.KEY_TAKEN]
        return verdict

    def _can_take_key(self, row: GuardRow) -> bool:
        if row.unique_key is None:
            return True
        self._flush()  # an earlier change of this call may have freed or taken it
        owners = self._work.connection.rows(_sql["key_owner"], (row.unique_key,))
        return not owners or owners[0][0] == row.id

    def _write(self, row: GuardRow, change: Change) -> None:
        if row.limited and row.stamp is not None and not (change.state and change.keeps_hold):
            self._work.ready.add(row.queue)  # there is room under its limits
        if change.state is None:
            self._let_go.append((row.id,))
            self._work.changed = True
            return
        guard = change.guard
        accepted_stamp = guard.stamp if isinstance(guard, HoldGuard) else row.accepted_stamp
        state, run_at, rank = _place(row, change, change.state, self._now)
        parked = row.limited and state is State.READY
        self._moved.append(
            (
                row.id,
                state.value,
                change.failures,
                change.losses,
                int(change.suspect),
                int(parked),
                run_at,
                rank,
                change.result,
                change.reason,
                change.started_at,
                _finished_at(row, state, self._now),
                None if change.keep is None else self._now + change.keep,
                change.keep_last,
                int(change.hidden),
                row.stamp if change.keeps_hold else None,
                accepted_stamp,
                row.leased_by if change.keeps_hold else None,
                row.leased_until if change.keeps_hold else None,
                int(_holds_key(row, change)),
                *stands(state.value, parked=parked, suspect=change.suspect),
            )
        )
        if change.errors is not None or change.next_id is not None:
            self._moved_on.append((row.id, change.errors, change.next_id))
        if state is State.READY or state is State.SCHEDULED:
            self._work.ready.add(row.queue)
        elif state in FINAL:
            self._work.changed = True
        if parked:
            self._parked.append(row.id)
        if change.key is KeyMove.TAKE:
            self._flush()

    def _add(self, change: Change) -> None:
        """Jobs that nothing else of the call can meet go in together at its end, the others in their turn."""
        self._added += change.adds
        if any(job.unique_key is not None or job.queue in self._special for job in change.adds):
            self._flush()
            owners = self._place()
            if change.next_id in owners:
                self._work.connection.change(_sql["go_on_with"], (owners[change.next_id], change.id))

    def _place(self) -> dict[str, str]:
        """Put jobs on record; gives who stands for those that were duplicates."""
        if not self._added:
            return {}
        added, self._added = self._added, []
        placed = enqueue(self._work, PreparedJobs(added), self._now, bounded=False)
        if placed is None:
            return {}
        if not isinstance(placed, list):
            raise placed
        return owners_among(added, placed)

    def _flush(self) -> None:
        _MOVE.run(self._work.connection, self._moved)
        _MOVE_ON.run(self._work.connection, self._moved_on)
        _LET_GO.run(self._work.connection, self._let_go)
        register_gates(self._work, self._parked)
        self._moved, self._moved_on, self._let_go, self._parked = [], [], [], []


def _place(row: GuardRow, change: Change, state: State, now: int) -> tuple[State, int, int]:
    run_at, rank = row.run_at, row.rank
    if change.at is not None or change.delay is not None:
        run_at = now + (change.delay or 0) if change.at is None else change.at
        if row.rank == row.run_at:
            rank = run_at
        elif change.pays:  # its rank is a share of a fair queue
            rank += SHARE
    if state is State.SCHEDULED and run_at <= now:
        state = State.READY
    return state, run_at, rank


def _finished_at(row: GuardRow, state: State, now: int) -> int | None:
    if state not in FINAL:
        return None
    return row.finished_at if row.state in FINAL else now


def _holds_key(row: GuardRow, change: Change) -> bool:
    if change.key is KeyMove.LEAVE:
        return row.holds_key
    return change.key is KeyMove.TAKE and row.unique_key is not None


# ---- holds -----------------------------------------------------------------------------------------
def look(connection: Connection, ids: Sequence[str]) -> dict[str, GuardRow]:
    """The rows of these jobs as guards see them."""
    if not ids:
        return {}
    return {row.id: row for row in _seen.decode(connection.value(_sql["seen"], (json_text(ids),)))}


def look_and_mend(work: Work, ids: Sequence[str], now: int) -> dict[str, GuardRow]:
    """The same under the write lock: one that cannot be read is set aside first."""
    try:
        return look(work.connection, ids)
    except (msgspec.MsgspecError, UnicodeDecodeError, work.error):
        sort_out(work, lists_of(work.connection.value(_sql["numbers"], (json_text(ids),))), now)
        return look(work.connection, ids)


def holding(connection: Connection, worker: str, stamp: int) -> tuple[list[Record], list[int]]:
    """What this worker holds under this stamp; or the numbers of the rows, if one of those cannot be read."""
    held_by = {"worker": worker, "stamp": stamp}
    return records_or_numbers(lambda text: connection.value(text, held_by), _sql["holding"], _HELD_NUMBERS)


def note_started(work: Work, started: Sequence[Started]) -> None:
    rows = [(note.hold.id, note.hold.attempt, note.hold.stamp, note.at) for note in started]
    _STARTED.run(work.connection, rows)


def renew(work: Work, holds: Sequence[Hold], lease: int | None, now: int) -> list[Verdict]:
    rows = [(hold.id, hold.attempt, hold.stamp) for hold in holds]
    if _RENEW.run(work.connection, rows, lease, now, lease) == len(rows):
        return [ACCEPTED] * len(rows)
    seen = look_and_mend(work, [hold.id for hold in holds], now)
    return [check_hold(seen.get(hold.id), hold) for hold in holds]


def check(connection: Connection, holds: Sequence[Hold]) -> list[Verdict]:
    seen = look(connection, [hold.id for hold in holds])
    return [check_hold(seen.get(hold.id), hold) for hold in holds]


def note(work: Work, notes: Sequence[Note], now: int) -> list[Verdict]:
    seen = look_and_mend(work, [note.hold.id for note in notes], now)
    verdicts = [check_hold(seen.get(note.hold.id), note.hold) for note in notes]
    taken = [note for note, verdict in zip(notes, verdicts, strict=True) if verdict.accepted]
    # the last word of each job, because an UPDATE takes any one of several
    progress = {note.hold.id: note.progress for note in taken if note.progress is not None}
    if _PROGRESS.run(work.connection, list(progress.items())):
        work.changed = True
    lines = [(note.hold.id, line) for note in taken for line in note.lines[-LOG_LINES:]]
    _LOG.run(work.connection, lines)
    for id in {id for id, _ in lines}:
        work.connection.change(_sql["cut_log"], {"job": id, "kept": LOG_LINES})
    return verdicts
