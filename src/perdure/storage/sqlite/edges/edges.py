"""Stores the edges between jobs: which child waits for which parent.

An open edge blocks its child. A followed job carries a mark (`edges_pending`), by which an index lists it once it has ended.
So the end of a job writes nothing more than it does without followers. `resolve_edges` does the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from perdure.core.record import NewJob
from perdure.storage.contract import JobDump
from perdure.storage.rules.records import parents_of

from ..connection.driver import Connection
from ..connection.work import Work
from ..queries import load
from ..reading.records import WHOLE, Many, json_text, lists_of

_sql = load("edges", whole=WHOLE)
_PUT = Many(_sql["put"], 3, (500, 100, 20, 4, 1))
_KEEP = Many(_sql["keep"], 2, (500, 100, 20, 4, 1))
_CLOSE = Many(_sql["close"], 2, (500, 100, 20, 4, 1))
_OPEN_AMONG = Many(_sql["open_among"], 2)

Edge = tuple[str, str]  # parent, child


def add(work: Work, jobs: Sequence[NewJob]) -> None:
    """Store the edges of new jobs, whose parents are stored."""
    waiting = [job for job in jobs if job.after is not None]
    if waiting:
        work.connection.change(_sql["add"], (json_text([job.id for job in waiting]),))
        mark_followed(work, {parent for job in waiting for parent in parents_of(job.after)})


def mark_followed(work: Work, parents: Iterable[str]) -> None:
    """Mark jobs as followed."""
    work.connection.change(_sql["mark"], (json_text(sorted(parents)),))


def put(work: Work, edges: Sequence[tuple[str, str, str]]) -> None:
    """Store open edges (parent, child, run_when)."""
    _PUT.run(work.connection, edges)


def close(work: Work, edges: Sequence[Edge]) -> None:
    _CLOSE.run(work.connection, edges)


def close_all(work: Work, children: Iterable[str]) -> None:
    work.connection.change(_sql["close_all"], (json_text(sorted(children)),))


def release(work: Work, children: Sequence[str], now: int) -> int:
    """Make blocked jobs ready or scheduled that wait for no parent any more; returns how many."""
    return work.connection.change(_sql["release"], {"now": now, "ids": json_text(children)})


def restore(work: Work, jobs: Sequence[JobDump]) -> None:
    """Restore the open edges to these jobs, and no others, and add the closed ones."""
    close_all(work, [job.record.id for job in jobs])
    put(work, [(parent, job.record.id, job.record.run_when) for job in jobs for parent in job.waits_for])
    parents = {parent for job in jobs for parent in job.waits_for}
    work.connection.change(_sql["remark"], (json_text(sorted(parents)),))
    _KEEP.run(work.connection, [(job.record.id, child) for job in jobs for child in job.kept_for])


def open_among(connection: Connection, edges: Sequence[Edge]) -> set[Edge]:
    """Those of these edges that are stored and open."""
    return {(parent, child) for parent, child in _OPEN_AMONG.rows(connection, edges)}


def followers(connection: Connection, ids: Sequence[str]) -> list[list[str]]:
    """For each of these jobs, the children that wait for it."""
    found = _group(connection.value(_sql["followers"], (json_text(list(ids)),)))
    return [found.get(id, []) for id in ids]


def parents(connection: Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    """For these jobs, the parents that they wait for."""
    return _group(connection.value(_sql["parents"], (json_text(list(ids)),)))


def unfinished_children(connection: Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    """For these jobs, the children that have waited for them and have not ended."""
    return _group(connection.value(_sql["unfinished_children"], (json_text(list(ids)),)))


def _group(pairs: str) -> dict[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for one, other in lists_of(pairs):
        groups[one].append(other)
    return groups
