"""What all admin views share: the app they belong to and its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..client.handle import JobHandle, ids_of
from ..client.transitions import transition
from ..core.job import Job, Page
from ..core.lifecycle import Report
from ..core.record import job_of
from ..errors import InvalidCall
from ..storage.contract import Filter, Storage
from .filters import check_limit, pages

if TYPE_CHECKING:
    from ..client.app_runtime import AppRuntime

JobRef = UUID | str | JobHandle[Any] | Job


class AdminView:
    def __init__(self, runtime: AppRuntime) -> None:
        self._runtime = runtime

    async def _storage(self) -> Storage:
        return await self._runtime.storage()

    async def _move(self, refs: tuple[JobRef, ...], said: Report) -> int:
        return await transition(await self._storage(), ids_of(refs), said)

    async def _move_all(self, filter: Filter, said: Report) -> int:
        storage = await self._storage()
        moved = 0
        async for records in pages(storage, filter):
            moved += await transition(storage, [record.id for record in records], said)
        return moved

    async def _find(self, filter: Filter, limit: int, cursor: str | None) -> Page[Job]:
        if cursor is not None and not isinstance(cursor, str):
            raise InvalidCall(f"cursor is the text that the page before gave, not {type(cursor).__name__}")
        records, following = await (await self._storage()).find(filter, check_limit(limit), cursor)
        return Page(tuple(job_of(record) for record in records), following)
