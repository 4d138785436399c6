"""Reads and writes kv entries: named texts with versions, written with the jobs that belong to them."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.storage.contract import KvEntry, KvWrite, MissingParent, QueueAtCapacity
from perdure.storage.rules.guards import check_hold

from .connection.driver import Connection
from .connection.work import Work
from .queries import load
from .reading.records import Many
from .writing.enqueue import PreparedJobs, enqueue
from .writing.guard_rows import read_and_mend

_sql = load("kv")
_NAMED = Many(_sql["named"], 1)
_VERSIONS = Many(_sql["versions"], 2, (100, 10, 1))
_PUT = Many(_sql["put"], 6, (100, 10, 1))
_REMOVE = Many(_sql["remove"], 2, (100, 10, 1))

Name = tuple[str, str]  # kind, name


def read(
    connection: Connection, kind: str, names: Sequence[str] | None, job: str | None, due_by: int | None, limit: int
) -> list[KvEntry]:
    """Entries of a kind: those with the given names, those that are due, or the first of all."""
    if names is not None:
        rows = _NAMED.rows(connection, [(name,) for name in sorted(set(names))], kind)
        return [row for row in map(_entry, rows) if job in (None, row.job)]
    if due_by is not None:
        rows = connection.rows(_sql["due"], {"kind": kind, "due_by": due_by, "job": job, "limit": limit})
    elif job is not None:
        rows = connection.rows(_sql["of_job"], {"job": job, "kind": kind, "limit": limit})
    else:
        rows = connection.rows(_sql["of_kind"], (kind, limit))
    return [_entry(row) for row in rows]


def write(work: Work, writes: Sequence[KvWrite], now: int) -> list[bool] | QueueAtCapacity | MissingParent:
    """Write the entries whose guards hold, with their jobs. A refusal is returned, not raised, because nothing has been
    written when it is found."""
    keys = {(write.kind, write.name) for write in writes}
    versions = {(kind, name): version for kind, name, version in _VERSIONS.rows(work.connection, sorted(keys))}
    held = read_and_mend(work, [write.hold.id for write in writes if write.hold is not None], now)
    done: list[bool] = []
    written: dict[Name, KvEntry | None] = {}
    for write in writes:
        name = (write.kind, write.name)
        is_held = write.hold is None or check_hold(held.get(write.hold.id), write.hold).accepted
        done.append(is_held and write.version in (None, versions.get(name, 0)))
        if done[-1]:
            written[name] = _after(write, versions)
    jobs = [job for write, holds in zip(writes, done, strict=True) if holds for job in write.jobs]
    refusal = enqueue(work, PreparedJobs(jobs), now) if jobs else None
    if isinstance(refusal, (QueueAtCapacity, MissingParent)):
        return refusal
    _REMOVE.run(work.connection, [name for name, row in written.items() if row is None])
    put(work, [row for row in written.values() if row is not None])
    return done


def _after(write: KvWrite, versions: dict[Name, int]) -> KvEntry | None:
    """The entry after a write, None if it is removed. Updates the versions that the next write will find."""
    name = (write.kind, write.name)
    if write.text is None:
        versions.pop(name, None)
        return None
    versions[name] = versions.get(name, 0) + 1
    return KvEntry(write.kind, write.name, write.text, versions[name], write.due_at, write.job)


def page(connection: Connection, after: Name | None, limit: int) -> list[KvEntry]:
    condition = "" if after is None else "WHERE (kind, name) > (?, ?)"
    return [
        _entry(row) for row in connection.rows(_sql["page"].replace("{condition}", condition), (*(after or ()), limit))
    ]


def put(work: Work, rows: Sequence[KvEntry]) -> None:
    """Store entries as they are, in name of the stored ones."""
    values = [(row.kind, row.name, row.text, row.version, row.due_at, row.job) for row in rows]
    _PUT.run(work.connection, values)


def _entry(row: Sequence[object]) -> KvEntry:
    return KvEntry(*row)  # type: ignore[arg-type]
