"""Carries what handlers say on their way (progress, log lines) to the store. Words that come while a write is under way
are gathered into the next one; of several progress values of one job the last counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from ...core.job import Loss
from ...core.lifecycle import Change
from ...core.record import Hold, NewJob
from ...errors import HoldLost, InvalidCall, StoreError
from ...flow.answers import deliver
from ...flow.compensation import add_undo, undo_write
from ...flow.cycles import find_cycle
from ...flow.steps import ANSWER, MOST
from ...handler.context import Context
from ...observe import log
from ...storage.contract import LOSS_OF, KvEntry, KvWrite, Note, Storage, StoreTransaction, Verdict
from ..health.store_trouble import works_for_handlers

LONGEST_TRANSACTION = 5_000_000


class _Pending:
    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self.progress: str | None = None
        self.lines: list[str] = []
        self.told: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()


class StoreContextBackend:
    """The worker's voice for its handlers."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self._pending: dict[Hold, _Pending] = {}
        self._writing: asyncio.Task[None] | None = None
        self._keeping: set[asyncio.Task[None]] = set()

    async def store_works(self) -> bool:
        """Whether the store answers handlers, just now."""
        return await works_for_handlers(self._store)

    @property
    def place(self) -> str:
        """Which store it speaks to."""
        return self._store.place

    async def progress(self, context: Context, text: str) -> None:
        pending = self._pending_of(context)
        pending.progress = text
        await self._heard(context, pending)
        context._record.progress = text
        context._job = None

    async def log(self, context: Context, line: str) -> None:
        pending = self._pending_of(context)
        pending.lines.append(line)
        await self._heard(context, pending)

    async def begin(self, context: Context) -> StoreTransaction:
        record = context._record
        return await self._store.begin_for(record.hold, min(LONGEST_TRANSACTION, record.lease // 6))

    async def texts(self, job: str, kind: str) -> list[KvEntry]:
        return await self._store.kv_read(kind, job=job, limit=MOST)

    async def keep(self, write: KvWrite) -> Loss | None:
        """Put a text of a handler on record; why it is not, if its hold is gone."""
        if (await self._store.kv_write([write]))[0]:
            return None
        assert write.hold is not None
        (verdict,) = await self._store.check([write.hold])
        return Loss.ERROR if verdict.refusal is None else LOSS_OF.get(verdict.refusal, Loss.ERROR)

    async def now(self) -> int:
        return await self._store.now()

    def undo(self, context: Context, undo: NewJob) -> None:
        """Keep a compensation on record, soon: the handler does not wait for it, its end does."""
        loop = context._loop
        assert loop is not None
        loop.call_soon_threadsafe(self._keep_undo, context, undo)

    def _keep_undo(self, context: Context, undo: NewJob) -> None:
        self._begin(self._keep_undos(context._record.id, undo))

    def _begin(self, keeping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(keeping, name="perdure words")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def look_for_answers(self, job: str) -> None:
        """A job went to wait for an answer, which may have come while it still ran. (Upkeep would find it, later.)"""
        self._begin(self._look_for_answers(job))

    async def _look_for_answers(self, job: str) -> None:
        try:
            due = [row for row in await self._store.kv_read(ANSWER, job=job) if row.due_at is not None]
            await deliver(self._store, due)
        except Exception as error:
            log.service_failed("looking for an answer", error)

    async def _keep_undos(self, job: str, undo: NewJob) -> None:
        try:
            await self._store.kv_write([undo_write(job, undo)])
        except Exception as error:  # the handler's own end still carries it
            log.service_failed("keeping a compensation", error)

    async def with_undo(self, context: Context | None, change: Change) -> Change:
        """A change that makes a job dead, with what undoes it."""
        await asyncio.gather(*self._keeping)
        return await add_undo(self._store, change, getattr(context, "_undos", ()))

    async def circle(self, change: Change) -> InvalidCall | None:
        """What is wrong with how a job goes on. A store that does not answer has no objection: it is about to be told."""
        try:
            return await find_cycle(self._store, change)
        except StoreError as error:
            log.service_failed("looking at what a chain goes on after", error)
            return None

    def _pending_of(self, context: Context) -> _Pending:
        hold = context._record.hold
        pending = self._pending.get(hold)
        if pending is None:
            pending = self._pending[hold] = _Pending(hold)
        return pending

    async def _heard(self, context: Context, pending: _Pending) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="perdure notes")
        verdict = await asyncio.shield(pending.told)
        if verdict.refusal is not None:
            reason = LOSS_OF.get(verdict.refusal, Loss.ERROR)
            raise HoldLost(f"the job is no longer held by this handler: {reason}", reason)

    async def _write(self) -> None:
        try:
            while self._pending:
                taken = list(self._pending.values())[: self._store.chunk]
                for pending in taken:
                    del self._pending[pending.hold]
                await self._write_batch(taken)
        finally:
            self._writing = None

    async def _write_batch(self, taken: Sequence[_Pending]) -> None:
        notes = [Note(pending.hold, pending.progress, tuple(pending.lines)) for pending in taken]
        try:
            verdicts = await self._store.note(notes)
            for pending, verdict in zip(taken, verdicts, strict=True):
                if not pending.told.done():
                    pending.told.set_result(verdict)
        except BaseException as error:  # whoever waits for an answer gets one, whatever breaks
            for pending in taken:
                if not pending.told.done():
                    pending.told.set_exception(error if isinstance(error, Exception) else StoreError("it was given up"))
                    pending.told.exception()  # a caller that was cancelled meanwhile does not fetch it
            if not isinstance(error, Exception):
                raise
