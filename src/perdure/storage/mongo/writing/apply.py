"""Applies changes. Each is written if its guard holds, and refused alone if not.

The transaction reads the rows, Python judges the guards, and the writes go by id. If another transaction has changed a row
meanwhile, the server reports a write conflict, and the whole transaction is repeated. Rows of jobs that this store claimed
itself are often not read: see `fast_apply`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from perdure.core.job import FINAL, State
from perdure.core.lifecycle import Change, KeyMove
from perdure.core.record import Hold, NewJob, Record
from perdure.storage.contract import ACCEPTED, LOG_LINES, REFUSED, Note, Refusal, Started, Verdict
from perdure.storage.rules.guards import check_hold, judge
from perdure.storage.rules.records import owners_among, parents_of, refuse_missing_parents, renew_lease, write_change

from ..connection.operations import Steps, find, group_by_update, update
from ..edges.resolve_edges import EdgeResolution
from ..limits.limit_wakeups import notify_limit_claimers
from ..reading.records import WHOLE, Document
from ..upkeep.lease_batches import claimed_by
from ..upkeep.unreadable import read, readable
from . import updates
from .enqueue import store
from .fast_apply import try_fast_rows
from .unique_keys import holders
from .updates import find_followable, read_rows


class Applied(NamedTuple):
    verdicts: list[Verdict]
    ready: set[str]  # queues
    changed: bool
    parents: list[str]  # jobs whose edges are to be looked at
    left: list[str]  # entries on the list for `resolve_edges`
    written: set[str]


def apply(
    changes: Sequence[Change],
    now: int,
    resolution: EdgeResolution = EdgeResolution.TOGETHER,
    claimed: Mapping[str, Record] | None = None,
) -> Steps[Applied]:
    """Apply the changes; the result has a verdict for each. `claimed`: jobs as the claims of this store left them. Raises
    `Outdated` if one of them is different by now."""
    yield from _refuse_orphans([job for change in changes for job in change.adds])
    unread = try_fast_rows(changes, claimed or {})
    rows = unread | (yield from read_rows([change.id for change in changes if change.id not in unread], now=now))
    applied = Applied([], set(), False, [], [], set())
    for part in _split_at_keys(changes):
        applied = _merge(applied, (yield from _apply(part, rows, now, resolution, unread)))
    return applied


def _apply(
    changes: Sequence[Change],
    rows: dict[str, Record],
    now: int,
    resolution: EdgeResolution,
    unread: Mapping[str, Record],
) -> Steps[Applied]:
    owners = yield from _owners_of_wanted_keys(changes, rows)
    verdicts: list[Verdict] = []
    before: dict[str, Record] = {}
    adds: list[NewJob] = []
    for change in changes:
        row = rows.get(change.id)
        verdict = judge(row, change, now)
        if verdict is ACCEPTED and row is not None and change.key is KeyMove.TAKE and not _free_for(row, owners):
            verdict = REFUSED[Refusal.KEY_TAKEN]
        verdicts.append(verdict)
        if verdict is ACCEPTED and row is not None:
            before[row.id] = copy(row)
            write_change(row, change, now)
            _hand_on_key(before[row.id], row, owners)
            adds += change.adds
    moved = [rows[id] for id in before]
    yield from updates.write(before, moved, unread)
    yield from notify_limit_claimers((before[row.id], row) for row in moved)
    applied = Applied(
        verdicts,
        ready={
            row.queue
            for row in moved
            if row.state in (State.READY, State.SCHEDULED) or _frees_slot(before[row.id], row)
        },
        changed=any(row.state in FINAL for row in moved),
        parents=[row.id for row in moved if row.followed and row.state in FINAL],
        left=[],
        written=set(before),
    )
    if not adds:
        return applied
    added = yield from store(adds, now, resolution, bounded=False)
    owners = owners_among(adds, added.placed)
    on = {change.id: owners[change.next_id] for change in changes if change.id in before and change.next_id in owners}
    yield from update("jobs", group_by_update({id: {"$set": {"next_id": owner}} for id, owner in on.items()}))
    return _merge(applied, Applied([], added.ready, False, added.parents, added.left + added.unmade, set()))


def _split_at_keys(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Split after changes that add jobs with unique keys: later changes must see these keys held."""
    begin = 0
    for end, change in enumerate(changes, 1):
        if end == len(changes) or any(job.unique_key is not None for job in change.adds):
            yield changes[begin:end]
            begin = end


def _merge(one: Applied, other: Applied) -> Applied:
    return Applied(
        one.verdicts + other.verdicts,
        one.ready | other.ready,
        one.changed or other.changed,
        one.parents + other.parents,
        one.left + other.left,
        one.written | other.written,
    )


def _frees_slot(before: Record, after: Record) -> bool:
    """Whether a job gave up its hold under limits."""
    return after.limits is not None and before.stamp is not None and after.stamp is None


def _refuse_orphans(adds: Sequence[NewJob]) -> Steps[None]:
    if parents := list({parent for job in adds for parent in parents_of(job.after)}):
        refuse_missing_parents(adds, (yield from find_followable(parents)))


# ---- keys ------------------------------------------------------------------------------------------
Owners = dict[str, str]  # unique key → the job that holds it


def _owners_of_wanted_keys(changes: Sequence[Change], rows: dict[str, Record]) -> Steps[Owners]:
    taking = [rows[change.id] for change in changes if change.key is KeyMove.TAKE and change.id in rows]
    return (yield from holders(row.unique_key for row in taking if row.unique_key is not None))


def _free_for(row: Record, owners: Owners) -> bool:
    return row.unique_key is None or owners.get(row.unique_key) in (None, row.id)


def _hand_on_key(before: Record, after: Record, owners: Owners) -> None:
    """Let later changes of the call see what this one did to its key."""
    if after.unique_key is not None and before.holds_key != after.holds_key:
        if after.holds_key:
            owners[after.unique_key] = after.id
        else:
            owners.pop(after.unique_key, None)


# ---- holds -----------------------------------------------------------------------------------------
def write_starts(started: Sequence[Started]) -> Steps[None]:
    """Write when handlers started. The statement itself checks that the holds are valid."""
    claims: dict[tuple[int, int], dict[str, Document]] = {}
    for note in started:
        claims.setdefault((note.hold.attempt, note.hold.stamp), {})[note.hold.id] = {"$set": {"started_at": note.at}}
    statements = []
    for (attempt, stamp), alike in claims.items():
        held = {"state": State.RUNNING.value, "attempt": attempt, "stamp": stamp}
        statements += [{**each, "q": each["q"] | held} for each in group_by_update(alike)]
    yield from update("jobs", statements)


def renew(holds: Sequence[Hold], lease: int | None, now: int) -> Steps[list[Verdict]]:
    """Prolong the leases of valid holds."""
    rows = yield from read_rows({hold.id for hold in holds}, now=now)
    before, prolonged = {}, {}
    for hold in holds:
        row = rows.get(hold.id)
        if (
            row is not None
            and _is_held(rows, hold)
            and (row.lease, row.leased_until) != renew_lease(row.lease, now, lease)
        ):
            before[row.id], prolonged[row.id] = row, copy(row)
            prolonged[row.id].lease, prolonged[row.id].leased_until = renew_lease(row.lease, now, lease)
    yield from updates.write(before, list(prolonged.values()))
    return [check_hold(rows.get(hold.id), hold) for hold in holds]


def renew_and_write_starts(
    holds: Sequence[Hold], started: Sequence[Started], lease: int | None, now: int
) -> Steps[list[Verdict]]:
    if started:
        yield from write_starts(started)
    return (yield from renew(holds, lease, now))


def check(holds: Sequence[Hold]) -> Steps[list[Verdict]]:
    rows = yield from read_rows({hold.id for hold in holds})
    return [check_hold(rows.get(hold.id), hold) for hold in holds]


def find_held(worker: str, stamp: int, now: int | None = None) -> Steps[list[Record]]:
    """The jobs that a worker holds under a stamp, in claim order. With `now`, unreadable ones are set aside."""
    ids = yield from claimed_by(worker, stamp)
    filter = {"_id": {"$in": ids}, "leased_by": worker, "stamp": stamp, "state": State.RUNNING.value}
    found = yield from find("jobs", filter, WHOLE)
    records = read(found).records if now is None else (yield from readable(found, now))
    return sorted(records, key=lambda record: (-record.priority, record.rank, record.id))


def note(notes: Sequence[Note]) -> Steps[tuple[list[Verdict], bool]]:
    """Write progress and append log lines. Also returns whether there was progress."""
    rows = yield from read_rows({note.hold.id for note in notes})
    accepted = [note for note in notes if _is_held(rows, note.hold)]
    progress = {note.hold.id: note.progress for note in accepted if note.progress is not None}
    yield from update("jobs", group_by_update({id: {"$set": {"progress": text}} for id, text in progress.items()}))
    lines: dict[str, list[str]] = {}
    for note in accepted:
        if note.lines:
            lines.setdefault(note.hold.id, []).extend(note.lines)
    yield from update("logs", [_EMPTIED | {"q": _BROKEN | {"_id": {"$in": list(lines)}}}] if lines else [])
    yield from update("logs", [_append(id, texts) for id, texts in lines.items()])
    return [check_hold(rows.get(note.hold.id), note.hold) for note in notes], bool(progress)


def answer_if_noted(notes: Sequence[Note]) -> Steps[tuple[list[Verdict], bool] | None]:
    """The answer to `note` if its lines are the last that are stored, else None: then it may be repeated."""
    lines = {note.hold.id: list(note.lines) for note in notes if note.lines}
    found = yield from find("logs", {"_id": {"$in": sorted(lines)}})
    last = {document["_id"]: document["lines"] for document in found}
    if not lines or any(last.get(id, [])[-len(texts) :] != texts[-LOG_LINES:] for id, texts in lines.items()):
        return None
    rows = yield from read_rows({note.hold.id for note in notes})
    return [check_hold(rows.get(note.hold.id), note.hold) for note in notes], True


# a log that somebody else wrote is no list, to which the server could add lines
_BROKEN: Document = {"lines": {"$exists": True, "$not": {"$type": "array"}}}
_EMPTIED: Document = {"u": {"$set": {"lines": []}}, "multi": True}


def _is_held(rows: dict[str, Record], hold: Hold) -> bool:
    return check_hold(rows.get(hold.id), hold) is ACCEPTED


def _append(id: str, lines: list[str]) -> Document:
    push = {"lines": {"$each": lines[-LOG_LINES:], "$slice": -LOG_LINES}}
    return {"q": {"_id": id}, "u": {"$push": push}, "upsert": True}
