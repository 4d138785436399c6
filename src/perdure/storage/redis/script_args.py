"""Packs jobs, changes, claims and notes into the arguments of scripts. The heads of the scripts name the layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from struct import Struct, error, pack

from perdure.core.clock import check_due
from perdure.core.job import ANY, Routing
from perdure.core.lifecycle import Change, HoldGuard, KeyMove
from perdure.core.record import ROW_VERSION, Hold, NewJob, UniformJobs
from perdure.storage.contract import Claim, Note, Started
from perdure.storage.rules.fairness import payer_of
from perdure.storage.rules.fast_path import are_ordinary_successes, is_ordinary
from perdure.storage.rules.records import parents_of

from .keys import escape, id_bytes, lane_of, names_of, require_id, routing_text, stamp_bytes
from .rows import (
    NONE,
    SCOPE_NUMBERS,
    STATE_NUMBERS,
    bodies_of,
    body_of,
    keep_last_of,
    more_of,
    outcome_of,
    position_of_after,
)

Argument = bytes | str | int
NOT_AN_ID = b"\x00" * 16  # finds nothing
_MOST_SHAPES = 1024  # that are remembered

_SHAPE = Struct("<BiIBBddddH")
_CHANGE = Struct("<16sBIqBIIHdddd")
_HOLD = Struct("<16sIqd")
_PLACE = Struct("<H")
_LINK = Struct("<II")

_AT, _EXTRAS, _TENANT, _AFTER, _FINISHED = 1, 2, 4, 8, 16
_SUSPECT, _HIDDEN, _KEEPS_HOLD, _FREES_KEY, _TAKES_KEY = 1, 2, 4, 8, 16
_HAS_TIME, _TIME_IS_INSTANT, _OUTCOME, _ERRORS, _PAYS, _NEXT, _ADDS = 32, 64, 128, 256, 512, 1024, 2048
_KEY_MOVES = {KeyMove.LEAVE: 0, KeyMove.FREE: _FREES_KEY, KeyMove.TAKE: _TAKES_KEY}


# ---- enqueue ---------------------------------------------------------------------------------------
def pack_jobs(jobs: Sequence[NewJob]) -> list[Argument]:
    """Pack new jobs. Their shapes come first, because most jobs of a list differ only in id and body."""
    if len(jobs) == 1 and is_ordinary(job := jobs[0]):
        return [1, _ordinary_shape(job), b"\x00\x00", require_id(job.id), body_of(job)]
    if isinstance(jobs, UniformJobs) and is_ordinary(jobs.template) and (ids := _join_ids(jobs.ids)) is not None:
        return _pack_uniform(jobs, ids)
    shapes: dict[tuple[object, ...], int] = {}
    texts: list[Argument] = []
    places = bytearray()
    arguments: list[Argument] = []
    for job in jobs:
        extras = job.unique_key is not None or job.key is not None or job.chain_id is not None
        alike = (
            job.task,
            job.queue,
            job.routing_key,
            job.priority,
            job.delay,
            job.at,
            job.expires,
            job.lease,
            job.waits,
            job.min_version,
            job.unique_scope,
            job.unique_window,
            extras,
            job.tenant is None,
            job.limits,
            None if job.after is None else job.retention,
            job.run_when,
        )
        shape = shapes.get(alike)
        if shape is None:
            shape = shapes[alike] = len(texts)
            texts.append(_shape(job, extras))
        places += _PLACE.pack(shape)
        arguments += (require_id(job.id), body_of(job))
        if extras:
            arguments += (b"" if job.unique_key is None else job.unique_key.encode(), names_of(job))
        if job.tenant is not None:
            arguments.append((payer_of(job).tenant or "").encode())
        if job.after is not None:
            arguments.append(_LINK.pack(*position_of_after(job)) + b"".join(map(require_id, parents_of(job.after))))
    return [len(texts), *texts, bytes(places), *arguments]


def _pack_uniform(jobs: UniformJobs, ids: bytes) -> list[Argument]:
    """Pack ordinary jobs that differ only in id and payload."""
    arguments: list[Argument] = [1, _ordinary_shape(jobs.template), bytes(2 * len(jobs))]
    arguments += [b""] * (2 * len(jobs))
    arguments[3::2] = [ids[at : at + 16] for at in range(0, len(ids), 16)]
    arguments[4::2] = bodies_of(jobs.template, jobs.payloads)
    return arguments


_ordinary_shapes: dict[tuple[object, ...], bytes] = {}  # of jobs without instants of their own: there are few


def _ordinary_shape(job: NewJob) -> bytes:
    if job.at is not None or job.delay:
        return _shape(job, extras=False)
    alike = (job.task, job.queue, job.priority, job.lease)
    shape = _ordinary_shapes.get(alike)
    if shape is None:
        if len(_ordinary_shapes) == _MOST_SHAPES:
            _ordinary_shapes.clear()
        shape = _ordinary_shapes[alike] = _shape(job, extras=False)
    return shape


def _shape(job: NewJob, extras: bool) -> bytes:
    lane = lane_of(job.queue, job.task, job.routing_key)
    scope = 0 if job.unique_key is None else SCOPE_NUMBERS[job.unique_scope]
    more = more_of(job)
    options = (
        (job.at is not None) * _AT
        | extras * _EXTRAS
        | (job.tenant is not None) * _TENANT
        | (job.after is not None) * _AFTER
        | (job.run_when == "finished") * _FINISHED
    )
    return (
        _SHAPE.pack(
            options,
            job.priority,
            job.waits,
            job.min_version,
            scope,
            job.lease,
            job.delay if job.at is None else check_due(job.at, "at="),
            NONE if job.expires is None else job.expires,
            job.unique_window or 0,
            len(lane),
        )
        + lane
        + _PLACE.pack(len(more))
        + more
    )


# ---- exchange --------------------------------------------------------------------------------------
def pack_changes(listed: Sequence[Change]) -> list[Argument]:
    """Pack changes. Plain successes come in runs with a common part; if there are others, all come one by one."""
    if listed and are_ordinary_successes(listed) and (ids := _join_ids([change.id for change in listed])) is not None:
        return [len(listed), *_pack_runs(listed, ids)]
    arguments: list[Argument] = [len(listed), 0]
    for change in listed:
        _add_change(arguments, change)
    return arguments


def _pack_runs(listed: Sequence[Change], ids: bytes) -> list[Argument]:
    runs: list[Argument] = []
    count = begin = 0
    for _, run in groupby(listed, _common_part):
        together = list(run)
        end = begin + len(together)
        first: list[Argument] = []
        _add_change(first, together[0])
        starts = [change.started_at for change in together]
        pack_starts = b"" if starts[0] is None else pack(f"<{len(starts)}d", *starts)
        runs += (first[0], ids[16 * begin : 16 * end], pack_starts)
        if together[0].result is not None:
            runs += [outcome_of(change.result, None) for change in together]
        count += 1
        begin = end
    return [count, *runs]


def _common_part(change: Change) -> tuple[object, ...]:
    """The part that the successes of a run share."""
    return change.guard, change.failures, change.keep, change.result is None, change.started_at is None


def _join_ids(ids: Sequence[str]) -> bytes | None:
    """Join ids as bytes; None if one of them is no id."""
    text = "".join(ids).replace("-", "")
    try:
        joined = bytes.fromhex(text)
    except ValueError:
        return None
    return joined if len(text) == 32 * len(ids) and set(map(len, ids)) == {36} else None


def _add_change(arguments: list[Argument], change: Change) -> None:
    guard = change.guard
    if isinstance(guard, HoldGuard):
        kind, number, stamp = int(guard.ended), guard.attempt, guard.stamp
    else:
        kind, number, stamp = 3 if guard.lapsed else 2, guard.version, 0
    options = (
        change.suspect * _SUSPECT | change.hidden * _HIDDEN | change.keeps_hold * _KEEPS_HOLD | _KEY_MOVES[change.key]
    )
    if change.pays:
        options |= _PAYS
    if change.next_id is not None:
        options |= _NEXT
    if change.adds:
        options |= _ADDS
    time = 0
    if change.at is not None:
        time = check_due(change.at, "at=")
        options |= _HAS_TIME | _TIME_IS_INSTANT
    elif change.delay is not None:
        time = change.delay
        options |= _HAS_TIME
    has_outcome = change.result is not None or change.reason is not None
    if has_outcome:
        options |= _OUTCOME
    if change.errors is not None:
        options |= _ERRORS
    arguments.append(
        _CHANGE.pack(
            id_bytes(change.id) or NOT_AN_ID,
            kind,
            number,
            stamp,
            0 if change.state is None else STATE_NUMBERS[change.state],
            change.failures,
            change.losses,
            options,
            time,
            NONE if change.started_at is None else change.started_at,
            NONE if change.keep is None else change.keep,
            keep_last_of(change.keep_last),
        )
    )
    if has_outcome:
        arguments.append(outcome_of(change.result, change.reason))
    if change.errors is not None:
        arguments.append(change.errors.encode())
    if change.next_id is not None:
        arguments.append(require_id(change.next_id))
    if change.adds:
        arguments += pack_jobs(change.adds)


def pack_starts(notes: Sequence[Started]) -> list[Argument]:
    return [len(notes), *(pack_hold(note.hold, note.at) for note in notes)]


def pack_holds(listed: Iterable[Hold]) -> list[bytes]:
    return [pack_hold(hold) for hold in listed]


def pack_hold(hold: Hold, at: int = 0) -> bytes:
    id = id_bytes(hold.id)
    try:
        return _HOLD.pack(id or NOT_AN_ID, hold.attempt, hold.stamp, at)
    except error:  # numbers that no hold of ours has
        return _HOLD.pack(NOT_AN_ID, 0, 0, at)


def pack_claim(claim: Claim | None, chunk: int) -> list[Argument]:
    if claim is None:
        return [-1]
    arguments: list[Argument] = [len(claim.wants), claim.worker, stamp_bytes(claim.stamp), chunk, ROW_VERSION]
    for want in claim.wants:
        alone, limited = "alone" if want.alone else "any", "limited" if want.limited else "plain"
        arguments += (want.limit, alone, limited, _routing(want.routing), *_names(want.queues), *_names(want.tasks))
    return arguments


@lru_cache(maxsize=256)
def _names(names: tuple[str, ...] | None) -> tuple[Argument, ...]:
    if names is None:
        return (-1,)
    distinct = [escape(name) for name in dict.fromkeys(names)]
    return (len(distinct), *distinct)


def _routing(routing: Routing) -> bytes:
    return b"*" if routing is ANY else routing_text(routing)


def pack_notes(listed: Sequence[Note]) -> list[Argument]:
    arguments: list[Argument] = []
    for note in listed:
        progress = b"" if note.progress is None else b"=" + note.progress.encode()
        arguments += (pack_hold(note.hold), progress, len(note.lines), *(line.encode() for line in note.lines))
    return arguments
