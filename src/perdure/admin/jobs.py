"""`app.jobs`: list, read, cancel, complete, answer and delete jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from ..client.handle import ids_of
from ..client.transitions import delete, transition
from ..core.encoding.codec import encode
from ..core.ids import id_text
from ..core.job import FINAL, Job, JobId, Page
from ..core.lifecycle import Cancelled, Completed, RunNow
from ..core.record import job_of
from ..core.validation import check_name
from ..core.verb import verb
from ..errors import IllegalMove, NotFound
from ..flow.answers import answer
from ..storage.contract import Storage
from ..tasks.not_released import NotReleased
from .base import AdminView, JobRef
from .filters import JobFilter, dict_of, filter_of

if TYPE_CHECKING:
    from .._sync import SyncJobs


class Jobs(AdminView, NotReleased):
    """`app.jobs`: find, read and change jobs.

    >>> from perdure import Perdure
    >>> Perdure("memory://").jobs.sync.count()
    0
    """

    @property
    def sync(self) -> SyncJobs:
        """The blocking forms of its verbs."""
        from .._sync import SyncJobs

        return SyncJobs(self)

    @verb
    async def get(self, id: JobId | str, /) -> Job | None:
        """The job with this id; None when there is none."""
        (record,) = await (await self._storage()).get([id_text(id)])
        return None if record is None or record.hidden else job_of(record)

    @verb
    async def find(self, *, limit: int = 50, cursor: str | None = None, **filter: Unpack[JobFilter]) -> Page[Job]:
        """Jobs that fit, newest first; `page.cursor` leads on and is None on the last page."""
        return await self._find(filter_of(dict_of(filter)), limit, cursor)

    @verb
    async def count(self, **filter: Unpack[JobFilter]) -> int:
        """How many jobs fit."""
        wanted = filter_of(dict_of(filter))
        return await (await self._storage()).count(wanted)

    @verb
    async def cancel(self, *ids: JobRef) -> int:
        """Cancel jobs that have not ended; how many it took hold of."""
        return await self._move(ids, Cancelled())

    @verb
    async def run_now(self, *ids: JobRef) -> int:
        """Make scheduled jobs due; how many it took hold of."""
        return await self._move(ids, RunNow())

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
        told = None if result is None else encode(result, "the result", self._runtime.app.settings.max_bytes)
        storage = await self._storage()
        (record,) = await storage.get([text])
        definition = None if record is None else self._runtime.app.definitions().get(record.task)
        if definition is not None:
            definition.decode_result(told)
        if await transition(storage, [text], Completed(told)) == 0:
            await self._refuse(storage, text, "completed")

    @verb
    async def answer(self, id: JobRef, name: str, value: object = None, /) -> None:
        """Give the answer that a job waits for with `ctx.wait_for(name)`, now or later. NotFound for an unknown job,
        IllegalMove for one that has ended or was answered already."""
        text = id_text(id)
        check_name(name, "the name of the answer")
        told = encode(value, "the answer", self._runtime.app.settings.max_bytes)
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
