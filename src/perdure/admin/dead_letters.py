"""`app.dead`: list, retry, export and purge dead letters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Unpack

import msgspec

from ..client.transitions import delete, delete_unfollowed
from ..core.clock import datetime_of
from ..core.job import Job, Page, State
from ..core.lifecycle import Retried
from ..core.record import job_of, unreadable_fields
from ..core.verb import verb
from ..errors import InvalidCall
from ..observe import log
from ..storage.contract import Filter, Storage, Unreadable
from .base import AdminView, JobRef
from .filters import JobFilter, dict_of, filter_of, pages

if TYPE_CHECKING:
    from .._sync import SyncDead

_UNREADABLE_EXPORTED = 100_000  # rows of no job; each is one line


class DeadLetters(AdminView):
    """`app.dead`: jobs that will not be tried again by themselves.

    >>> from perdure import Perdure
    >>> Perdure("memory://").dead.sync.retry_all()
    0
    """

    @property
    def sync(self) -> SyncDead:
        """The blocking forms of its verbs."""
        from .._sync import SyncDead

        return SyncDead(self)

    @verb
    async def find(self, *, limit: int = 50, cursor: str | None = None, **filter: Unpack[JobFilter]) -> Page[Job]:
        """Dead letters that fit, newest first."""
        return await self._find(_dead(filter), limit, cursor)

    @verb
    async def retry(self, *ids: JobRef) -> int:
        """Give dead letters a fresh budget: same id, history kept. How many it took hold of; one whose unique key belongs
        to another job by now stays dead."""
        return await self._move(ids, Retried())

    @verb
    async def retry_all(self, **filter: Unpack[JobFilter]) -> int:
        """Retry every dead letter that fits."""
        return await self._move_all(_dead(filter), Retried())

    @verb
    async def purge(self, *, cascade: bool = False, **filter: Unpack[JobFilter]) -> int:
        """Delete the dead letters that fit; how many. One that others wait for stays, and the log says so; `cascade` deletes
        it with those that wait, and counts them. Without a filter it is refused."""
        wanted = _dead(filter)
        if wanted == _dead({}):
            raise InvalidCall(
                "app.dead.purge without a filter would delete every dead letter; name a task=, before=, …"
            )
        storage = await self._storage()
        purged = 0
        followed: list[str] = []
        async for records in pages(storage, wanted):
            ids = [record.id for record in records]
            if cascade:
                purged += await delete(storage, ids, cascade=True)
            else:
                deleted, kept = await delete_unfollowed(storage, ids)
                purged += deleted
                followed += kept
        if followed:
            log.purge_refused(len(followed), followed[0])
        return purged

    @verb
    async def export(self, path: str | Path, /, **filter: Unpack[JobFilter]) -> int:
        """Write the dead letters that fit to a file, one JSON object a line; how many. The file appears when it is whole.
        A job whose row could not be read has it under "unreadable", as it was stored; without a filter, rows that are of no
        job follow."""
        storage = await self._storage()
        part = Path(f"{path}.part")
        written = 0
        try:
            file = await asyncio.to_thread(part.open, "wb")
            try:
                async for lines in _export_line(storage, _dead(filter)):
                    await asyncio.to_thread(file.write, b"".join(line + b"\n" for line in lines))
                    written += len(lines)
                await asyncio.to_thread(file.close)
                await asyncio.to_thread(os.replace, part, path)
            finally:
                await asyncio.to_thread(_clear_away, file, part)
        except OSError as error:
            raise InvalidCall(f"dead letters cannot be written to {path}: {error}") from error
        return written

    def _spelled(self) -> str:
        return "app.dead"


def _dead(filter: JobFilter) -> Filter:
    given = dict_of(filter)
    if given.get("state", State.DEAD) not in (State.DEAD, [State.DEAD], (State.DEAD,)):
        raise InvalidCall("app.dead knows only dead letters; leave state= out")
    return filter_of({**given, "state": State.DEAD})


async def _export_line(storage: Storage, filter: Filter) -> AsyncIterator[list[bytes]]:
    """Dead letters as lines of a file, page by page; with them, what was stored of those that could not be read."""
    async for records in pages(storage, filter):
        set_aside = [record.id for record in records if unreadable_fields(record.reason)]
        rows = {row.id: row for row in await storage.unreadable(set_aside)} if set_aside else {}
        yield [_line(job_of(record), rows.get(record.id)) for record in records]
    if filter == Filter(states=(State.DEAD,)):
        found = await storage.unreadable(limit=_UNREADABLE_EXPORTED)
        known = {row.id for row in found if row.where == "jobs"}
        have = {record.id for record in await storage.get(list(known)) if record is not None} if known else set()
        yield [_line(None, row) for row in found if row.id not in have]


def _line(job: Job | None, row: Unreadable | None) -> bytes:
    if row is None:
        return msgspec.json.encode(job)
    told = {
        "at": datetime_of(row.at),
        "where": row.where,
        "id": row.id,
        "fields": row.fields,
        "raw": msgspec.Raw(row.raw.encode()),
    }
    return msgspec.json.encode({**({} if job is None else msgspec.to_builtins(job)), "unreadable": told})


def _clear_away(file: IO[bytes], part: Path) -> None:
    """Whatever became of it, no unfinished file stays behind."""
    try:
        file.close()
    finally:
        part.unlink(missing_ok=True)
