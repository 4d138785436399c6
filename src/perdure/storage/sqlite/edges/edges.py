"""The edges between jobs: who waits for whom.

An open edge holds its child back. A job that is followed carries a mark (`releases`) which an index shows once the job has
ended; so the end of a job writes nothing more than it does without followers. What follows from edges is in `resolve_edges`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from perdure.core.record import NewJob
from perdure.storage.contract import JobDump
from perdure.storage.rules.records import parents_of

from ..connection.driver import Connection
from ..connection.writer import Work
from ..queries import load
from ..reading.records import WHOLE, Many, json_text, lists_of

_sql = load("edges", whole=WHOLE)
_PUT = Many(_sql["put"], 3, (500, 100, 20, 4, 1))
_KEEP = Many(_sql["keep"], 2, (500, 100, 20, 4, 1))
_CLOSE = Many(_sql["close"], 2, (500, 100, 20, 4, 1))
_LED = Many(_sql["led"], 2)

Edge = tuple[str, str]  # parent, child


def add(work: Work, jobs: Sequence[NewJob]) -> None:
    """The edges of jobs that have just been stored; their parents are on record."""
    waiting = [job for job in jobs if job.after is not None]
    if waiting:
        work.connection.change(_sql["add"], (json_text([job.id for job in waiting]),))
        follow(work, {parent for job in waiting for parent in parents_of(job.after)})


def follow(work: Work, parents: Iterable[str]) -> None:
    """Mark jobs that others wait for."""
    work.connection.change(_sql["mark"], (json_text(sorted(parents)),))


def put(work: Work, edges: Sequence[tuple[str, str, str]]) -> None:
    """Open edges (parent, child, run_when) as they are given."""
    _PUT.run(work.connection, edges)


def close(work: Work, edges: Sequence[Edge]) -> None:
    _CLOSE.run(work.connection, edges)


def close_all(work: Work, children: Iterable[str]) -> None:
    work.connection.change(_sql["close_all"], (json_text(sorted(children)),))


def let_go(work: Work, children: Sequence[str], now: int) -> int:
    """Those of these that are blocked and wait for nobody are ready, or scheduled; gives how many."""
    return work.connection.change(_sql["let_go"], {"now": now, "ids": json_text(children)})


def restore(work: Work, jobs: Sequence[JobDump]) -> None:
    """The open edges that lead to these jobs are those that are given, and no others; the closed ones are added."""
    close_all(work, [job.record.id for job in jobs])
    put(work, [(parent, job.record.id, job.record.run_when) for job in jobs for parent in job.waits_for])
    parents = {parent for job in jobs for parent in job.waits_for}
    work.connection.change(_sql["remark"], (json_text(sorted(parents)),))
    _KEEP.run(work.connection, [(job.record.id, child) for job in jobs for child in job.kept_for])


def open_ones(connection: Connection, edges: Sequence[Edge]) -> set[Edge]:
    """Which of these edges there are, and hold their child back."""
    return {(parent, child) for parent, child in _LED.rows(connection, edges)}


def followers(connection: Connection, ids: Sequence[str]) -> list[list[str]]:
    """For each of these jobs, who still waits for it."""
    found = _grouped(connection.value(_sql["followers"], (json_text(list(ids)),)))
    return [found.get(id, []) for id in ids]


def parents(connection: Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    """For these jobs, whom they still wait for."""
    return _grouped(connection.value(_sql["parents"], (json_text(list(ids)),)))


def kept_for(connection: Connection, ids: Sequence[str]) -> dict[str, list[str]]:
    """For these jobs, who waited for them and has not ended."""
    return _grouped(connection.value(_sql["kept_for"], (json_text(list(ids)),)))


def _grouped(pairs: str) -> dict[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for one, other in lists_of(pairs):
        groups[one].append(other)
    return groups
