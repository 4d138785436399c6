"""Releases followers when their parents end, and gives jobs of fair queues their ranks: inside the transaction that caused
it, or right after its commit.

The rule is one transaction, so that nobody sees a half-done change. But it writes to parents, to followers and to the
accounts of fair queues. A transaction that lasts, such as a handler's, would lock them for everybody else, and many parents
of one follower would conflict with each other. So a transaction that met a few conflicts, and each that may last, adds an
entry to a list instead and resolves it right after its commit. If that fails, upkeep's `resolve_edges` finds the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import chain, repeat
from typing import Any, Protocol

from perdure.core.job import State
from perdure.errors import StoreError
from perdure.storage.contract import JobDump
from perdure.storage.rules.records import parents_of

from ..claiming import fair_ranks
from ..connection.operations import Steps, find, update
from ..reading import transfer
from ..reading.records import WHOLE, Document
from ..writing import updates
from ..writing.small_documents import first, remove_notes
from .edges import AT_ONCE, Followed, edges_to_put, follow, leave, loosen, put

_log = logging.getLogger("perdure")
RETRY_FOR = 0.5  # seconds; others may be at it, and what is left is found by upkeep


class EdgeResolution(Enum):
    """How a transaction deals with edges and shares."""

    TOGETHER = "together"
    AFTERWARDS = "afterwards"  # parents are looked for, not touched
    ELSEWHERE = "elsewhere"  # a caller's transaction: parents are not even looked for


TRIES_TOGETHER = 3
NOTHING = Followed(0, [], set(), False)


def edge_resolutions() -> Iterator[EdgeResolution]:
    """How each try of a transaction deals with edges."""
    return chain(repeat(EdgeResolution.TOGETHER, TRIES_TOGETHER), repeat(EdgeResolution.AFTERWARDS))


def resolve_edges_of(
    parents: Sequence[str], resolution: EdgeResolution, limit: int, now: int, written: Collection[str] = ()
) -> Steps[Followed]:
    """Resolve the edges of these parents now, or put them on the list; `left` has the new entries."""
    if not parents:
        return NOTHING
    if resolution is EdgeResolution.TOGETHER:
        followed = yield from follow(parents, limit, now, written)
    else:
        followed = Followed(0, list(dict.fromkeys(parents)), set(), False)
    return followed._replace(left=(yield from leave(followed.left)))


def resolve_listed_edges(limit: int, now: int, only: Sequence[str] | None = None) -> Steps[Followed]:
    """Work off the list, or `only` these entries of it."""
    if limit <= 0:
        return NOTHING
    if only is None:
        entries = yield from first("unresolved", limit)
    else:
        entries = yield from find("notes", {"_id": {"$in": list(only[:limit])}}, sort={"_id": 1})
    sorted_out: dict[str, list[Document]] = {"edges": [], "share": [], "make": [], "loose": []}
    for entry in entries:
        sorted_out[entry["what"]].append(entry)
    done = yield from _follow(sorted_out["edges"], limit, now)
    done = _merge(done, (yield from _give(sorted_out["share"], now)))
    room = AT_ONCE
    for entry in sorted_out["make"]:
        if room > 0:
            made = yield from _make(entry, room, now)
            room -= made.looked
            done = _merge(done, made)
    for entry in sorted_out["loose"][:1]:
        done = _merge(done, (yield from _loosen(entry)))
    return done


def _merge(one: Followed, other: Followed) -> Followed:
    return Followed(one.looked + other.looked, [], one.ready | other.ready, one.changed or other.changed)


def _follow(entries: Sequence[Document], limit: int, now: int) -> Steps[Followed]:
    """Look at the edges of jobs."""
    parents = {entry["job"] for entry in entries}
    followed = yield from follow(parents, limit, now)
    left = set(followed.left)
    yield from remove_notes(entry["_id"] for entry in entries if entry["job"] not in left)
    yield from leave(id for id in followed.left if id not in parents)
    return followed


def _give(entries: Sequence[Document], now: int) -> Steps[Followed]:
    """Give jobs their shares."""
    if not entries:
        return NOTHING
    released = yield from fair_ranks.give(list(dict.fromkeys(entry["job"] for entry in entries)), now)
    yield from remove_notes(entry["_id"] for entry in entries)
    return Followed(len(entries), [], {row.queue for row in released}, False)


def _make(entry: Document, limit: int, now: int) -> Steps[Followed]:
    """Make the next edges of a job that waits for very many, and look at them. The last step lets it go by one."""
    child = (yield from updates.read_rows([entry["job"]], WHOLE, now=now)).get(entry["job"])
    if child is None or child.state is not State.BLOCKED:
        yield from remove_notes([entry["_id"]])
        return Followed(1, [], set(), False)
    begin = entry.get("made", 0)
    parents = parents_of(child.after)[begin : begin + limit]
    yield from put(edges_to_put([(child, parents)]))
    followed = yield from follow(parents, 2 * limit, now)
    yield from leave(followed.left)
    if len(parents) == limit:
        yield from update("notes", [{"q": {"_id": entry["_id"]}, "u": {"$set": {"made": begin + limit}}}])
        return followed
    yield from remove_notes([entry["_id"]])
    released = yield from fair_ranks.let_go([entry["job"]], {}, now)
    return _merge(followed, Followed(1, [], {row.queue for row in released}, False))


def _loosen(entry: Document) -> Steps[Followed]:
    """Close the next edges of a job that waits for nobody any more."""
    if not (yield from loosen([entry["job"]])):
        yield from remove_notes([entry["_id"]])
    return Followed(1, [], set(), False)


class Write(Protocol):
    """Take steps in a transaction."""

    async def __call__(self, steps: Callable[[], Steps[Any]], *, retry_for: float | None = None) -> Any: ...


class Afterwards:
    """What a verb does right after its commit, in transactions of its own. A list in the store says what is left to do, so
    upkeep finishes it if this fails."""

    def __init__(
        self, write: Write, now: Callable[[], int], tell: Callable[[Collection[str], bool], None], chunk: int
    ) -> None:
        self._write = write
        self._now = now
        self._tell = tell
        self._chunk = chunk

    async def resolve(self, entries: Sequence[str]) -> None:
        """Settle what was put on the list, if nobody is in the resolution."""
        if not entries:
            return
        try:
            followed = await self._write(
                lambda: resolve_listed_edges(self._chunk, self._now(), entries), retry_for=RETRY_FOR
            )
        except StoreError:
            _log.debug("edges are left for upkeep to resolve", exc_info=True)
        else:
            self._tell(followed.ready, followed.changed)

    async def make_edges(self, entries: Sequence[str]) -> None:
        """Make the edges of which there were too many for one transaction."""
        while entries:
            followed = await self._write(lambda: resolve_listed_edges(self._chunk, self._now(), entries))
            self._tell(followed.ready, followed.changed)
            if not followed.looked:
                return

    async def restore_edges(self, jobs: Sequence[JobDump]) -> None:
        """The same for jobs that were carried here; who is interrupted says it all again."""
        ids = [job.record.id for job in jobs]
        while await self._write(lambda: loosen(ids)):
            pass
        wanted = transfer.edges_of(jobs)
        for begin in range(0, len(wanted), AT_ONCE):
            await self._write(partial(put, wanted[begin : begin + AT_ONCE]))
