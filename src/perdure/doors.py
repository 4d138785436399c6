"""The rooms of an app: jobs, dead letters, queues, workers. Each verb reads or says one thing about the store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Unpack, cast
from uuid import UUID

import msgspec

from .clock import SECOND, datetime_of
from .codec import encode
from .errors import IllegalMove, InvalidCall, NotFound
from .filters import JobFilter, checked_limit, filter_of, pages
from .flow.answers import answer
from .handle import JobHandle, ids_of
from .ids import id_text
from .job import FINAL, Job, JobId, Page, State, job_of, unreadable_fields
from .later import Later
from .lifecycle import Cancelled, Completed, HurriedUp, Retried, Said
from .moves import delete, delete_unfollowed, move
from .names import checked_name
from .observe import log
from .observe.queue_names import queue_rows
from .storage.contract import Filter, QueueRow, QueueSettings, Storage, Unreadable
from .storage.fairness import weights_of
from .verbs import verb

if TYPE_CHECKING:
    from ._sync import SyncDead, SyncJobs, SyncQueues, SyncWorkers
    from .app import Perdure

JobRef = UUID | str | JobHandle[Any] | Job

_UNREADABLE_EXPORTED = 100_000  # rows of no job; each is one line
_SEEN_WITHIN = 60 * SECOND  # a worker tells every ten seconds that it is there


@dataclass(frozen=True)
class QueueInfo:
    """A queue as it stands, and what was configured for it; `oldest` is for how many seconds its oldest ready job has been
    due."""

    name: str
    paused: bool
    depth: int
    oldest: float | None
    max_depth: int | None = None
    on_full: Literal["reject", "drop", "wait"] = "reject"
    drop_below: int | None = None
    fair: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that was seen lately."""

    id: str
    seen_at: datetime
    running: int


class _Room:
    def __init__(self, app: Perdure) -> None:
        self._app = app

    async def _storage(self) -> Storage:
        return await self._app._storage()

    async def _move(self, refs: tuple[JobRef, ...], said: Said) -> int:
        return await move(await self._storage(), ids_of(refs), said)

    async def _move_all(self, filter: Filter, said: Said) -> int:
        storage = await self._storage()
        moved = 0
        async for records in pages(storage, filter):
            moved += await move(storage, [record.id for record in records], said)
        return moved

    async def _find(self, filter: Filter, limit: int, cursor: str | None) -> Page[Job]:
        if cursor is not None and not isinstance(cursor, str):
            raise InvalidCall(f"cursor is the text that the page before gave, not {type(cursor).__name__}")
        records, following = await (await self._storage()).find(filter, checked_limit(limit), cursor)
        return Page(tuple(job_of(record) for record in records), following)


class Jobs(_Room, Later):
    """`app.jobs`: look at jobs and say something about them.

    >>> from perdure import Perdure
    >>> Perdure("memory://").jobs.sync.count()
    0
    """

    @property
    def sync(self) -> SyncJobs:
        """The blocking forms of its verbs."""
        from ._sync import SyncJobs

        return SyncJobs(self)

    @verb
    async def get(self, id: JobId | str, /) -> Job | None:
        """The job with this id; None when there is none."""
        (record,) = await (await self._storage()).get([id_text(id)])
        return None if record is None or record.hidden else job_of(record)

    @verb
    async def find(self, *, limit: int = 50, cursor: str | None = None, **filter: Unpack[JobFilter]) -> Page[Job]:
        """Jobs that fit, newest first; `page.cursor` leads on and is None on the last page."""
        return await self._find(filter_of(_given(filter)), limit, cursor)

    @verb
    async def count(self, **filter: Unpack[JobFilter]) -> int:
        """How many jobs fit."""
        wanted = filter_of(_given(filter))
        return await (await self._storage()).count(wanted)

    @verb
    async def cancel(self, *ids: JobRef) -> int:
        """Cancel jobs that have not ended; how many it took hold of."""
        return await self._move(ids, Cancelled())

    @verb
    async def run_now(self, *ids: JobRef) -> int:
        """Make scheduled jobs due; how many it took hold of."""
        return await self._move(ids, HurriedUp())

    @verb
    async def delete(self, *ids: JobRef, cascade: bool = False) -> int:
        """Remove jobs, running ones too (their code is told to stop); how many it took hold of. One that others wait for is
        refused, unless `cascade` removes those as well, and counts them."""
        return await delete(await self._storage(), ids_of(ids), cascade=cascade)

    @verb
    async def complete(self, id: JobRef, result: object = None, /) -> None:
        """Say that somebody other than a worker has done a job: it succeeds with this result. A handler that runs it is told
        `already_completed`. NotFound for an unknown job, IllegalMove for one that has ended, InvalidCall for a result that
        does not fit its task, if that is known here."""
        text = id_text(id)
        told = None if result is None else encode(result, "the result", self._app.settings.max_bytes)
        storage = await self._storage()
        (record,) = await storage.get([text])
        definition = None if record is None else self._app.definitions().get(record.task)
        if definition is not None:
            definition.decode_result(told)
        if await move(storage, [text], Completed(told)) == 0:
            await self._refuse(storage, text, "completed")

    @verb
    async def answer(self, id: JobRef, name: str, value: object = None, /) -> None:
        """Give the answer that a job waits for with `ctx.wait_for(name)`, now or later. NotFound for an unknown job,
        IllegalMove for one that has ended or was answered already."""
        text = id_text(id)
        checked_name(name, "the name of the answer")
        told = encode(value, "the answer", self._app.settings.max_bytes)
        storage = await self._storage()
        (record,) = await storage.get([text])
        if record is None or record.hidden or record.state in FINAL:
            await self._refuse(storage, text, "answered")
        elif not await answer(storage, record, name, told):
            raise IllegalMove(f"job {text} has its answer {name!r} already")

    async def _refuse(self, storage: Storage, id: str, what: str) -> None:
        (record,) = await storage.get([id])
        if record is None or record.hidden:
            raise NotFound(f"job {id} is not on record")
        raise IllegalMove(f"job {id} is {record.state} and cannot be {what}")

    @verb
    async def log(self, id: JobRef, /) -> tuple[str, ...]:
        """The lines that its handler logged, oldest first: at most the last 100."""
        text = id_text(id)
        storage = await self._storage()
        (record,) = await storage.get([text])
        if record is None or record.hidden:
            raise NotFound(f"job {text} is not on record")
        return tuple(await storage.log(text))

    def _spelled(self) -> str:
        return "app.jobs"


class DeadLetters(_Room):
    """`app.dead`: jobs that will not be tried again by themselves.

    >>> from perdure import Perdure
    >>> Perdure("memory://").dead.sync.retry_all()
    0
    """

    @property
    def sync(self) -> SyncDead:
        """The blocking forms of its verbs."""
        from ._sync import SyncDead

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
                async for lines in _exported(storage, _dead(filter)):
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


class Queues(_Room):
    """`app.queues`: pause, resume and bound named lines of jobs.

    >>> from perdure import Perdure
    >>> Perdure("memory://").queues.sync.list()
    ()
    """

    @property
    def sync(self) -> SyncQueues:
        """The blocking forms of its verbs."""
        from ._sync import SyncQueues

        return SyncQueues(self)

    @verb
    async def list(self) -> tuple[QueueInfo, ...]:
        """Every queue that has settings, waiting jobs, or had jobs that a worker claimed; by name."""
        return tuple(_queue_info(row) for row in await queue_rows(await self._storage()))

    @verb
    async def pause(self, name: str, /) -> None:
        """Claim no more jobs of this queue; those running go on. Durable."""
        queue = checked_name(name, "queue")
        await (await self._storage()).pause(queue, True)

    @verb
    async def resume(self, name: str, /) -> None:
        """End a pause."""
        queue = checked_name(name, "queue")
        await (await self._storage()).pause(queue, False)

    @verb
    async def configure(
        self,
        name: str,
        /,
        *,
        max_depth: int | None = None,
        on_full: Literal["reject", "drop", "wait"] = "reject",
        drop_below: int | None = None,
        fair: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Bound a queue. When `max_depth` jobs wait, "reject" raises QueueFull, "wait" waits for room, "drop" drops
        jobs of a priority below `drop_below` (without it: all) and waits with the others; without `max_depth` a queue is
        never full, and `on_full` has no effect. `fair`: its tenants take turns, each by its weight (1 where none is
        given), whatever the length of their lines."""
        settings = _queue_settings(name, max_depth, on_full, drop_below, fair, weights)
        place = await self._app._place()
        await place.storage.configure(settings)
        place.counted_until = 0.0  # who enqueues in a transaction of his own must not go by what was counted before

    def _spelled(self) -> str:
        return "app.queues"


class Workers(_Room):
    """`app.workers`: who is at work.

    >>> from perdure import Perdure
    >>> Perdure("memory://").workers.sync.list()
    ()
    """

    @property
    def sync(self) -> SyncWorkers:
        """The blocking forms of its verbs."""
        from ._sync import SyncWorkers

        return SyncWorkers(self)

    @verb
    async def list(self) -> tuple[WorkerInfo, ...]:
        """Workers seen within the last minute."""
        rows = await (await self._storage()).workers(_SEEN_WITHIN)
        return tuple(WorkerInfo(row.id, datetime_of(row.seen_at), row.running) for row in rows)

    def _spelled(self) -> str:
        return "app.workers"


def _given(filter: JobFilter) -> dict[str, Any]:
    return cast("dict[str, Any]", filter)


def _dead(filter: JobFilter) -> Filter:
    given = _given(filter)
    if given.get("state", State.DEAD) not in (State.DEAD, [State.DEAD], (State.DEAD,)):
        raise InvalidCall("app.dead knows only dead letters; leave state= out")
    return filter_of({**given, "state": State.DEAD})


async def _exported(storage: Storage, filter: Filter) -> AsyncIterator[list[bytes]]:
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


def _queue_info(row: QueueRow) -> QueueInfo:
    settings = row.settings
    return QueueInfo(
        settings.name,
        settings.paused,
        row.depth,
        None if row.oldest is None else row.oldest / SECOND,
        settings.max_depth,
        settings.on_full,
        settings.drop_below,
        settings.fair,
        weights_of(settings.weights),
    )


def _queue_settings(
    name: str,
    max_depth: int | None,
    on_full: Literal["reject", "drop", "wait"],
    drop_below: int | None,
    fair: bool,
    weights: Mapping[str, float] | None,
) -> QueueSettings:
    if max_depth is not None and not _whole(max_depth, 1, 2**31):
        raise InvalidCall(
            f"max_depth must be a whole number from 1 to 2147483647, or None for no bound; it is {max_depth!r}"
        )
    if on_full not in ("reject", "drop", "wait"):
        raise InvalidCall(f"on_full={on_full!r} is none of 'reject', 'drop', 'wait'")
    if drop_below is not None and not _whole(drop_below, -(2**31), 2**31):
        raise InvalidCall(f"drop_below must be a priority, a whole number of at most 32 bits, not {drop_below!r}")
    if drop_below is not None and on_full != "drop":
        raise InvalidCall('drop_below= needs on_full="drop"')
    if not isinstance(fair, bool):
        raise InvalidCall(f"fair must be True or False, it is {fair!r}")
    if weights and not fair:
        raise InvalidCall("weights= needs fair=True")
    text = _weights_text(weights) if weights else None
    return QueueSettings(checked_name(name, "queue"), False, max_depth, on_full, drop_below, fair, text)


def _whole(value: object, least: int, beyond: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < beyond


def _weights_text(weights: Mapping[str, float]) -> str:
    """Shares of tenants; a tenant is named up to its "/"."""
    if not isinstance(weights, Mapping):
        raise InvalidCall(f"weights is a mapping of tenants to numbers, not {type(weights).__name__}")
    for tenant, weight in weights.items():
        checked_name(tenant, "tenant")
        if "/" in tenant:
            raise InvalidCall(f"weights are given to whole tenants, the part before '/': {tenant!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.001 <= weight <= 1000:
            raise InvalidCall(f"the weight of {tenant!r} must be a number from 0.001 to 1000, it is {weight!r}")
    return msgspec.json.encode(dict(weights)).decode()
