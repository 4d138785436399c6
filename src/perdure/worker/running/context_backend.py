"""Writes what handlers report while they run (progress, log lines, texts) to the store. What arrives during a write is
collected for the next one; of several progress values of one job the last is written."""

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
from ...handler import context_access
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
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()


class StoreContextBackend:
    """The store, as handlers of one worker use it."""

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
        """The place of the store."""
        return self._store.place

    async def progress(self, context: Context, text: str) -> None:
        pending = self._pending_of(context)
        pending.progress = text
        await self._wait_for_note(context, pending)
        context_access.set_progress(context, text)

    async def log(self, context: Context, line: str) -> None:
        pending = self._pending_of(context)
        pending.lines.append(line)
        await self._wait_for_note(context, pending)

    async def begin(self, context: Context) -> StoreTransaction:
        record = context_access.record_of(context)
        return await self._store.begin_for(record.hold, min(LONGEST_TRANSACTION, record.lease // 6))

    async def texts(self, job: str, kind: str) -> list[KvEntry]:
        return await self._store.kv_read(kind, job=job, limit=MOST)

    async def keep(self, write: KvWrite) -> Loss | None:
        """Store a text of a handler. Returns a reason if it was not stored because the hold is gone."""
        if (await self._store.kv_write([write]))[0]:
            return None
        assert write.hold is not None
        (verdict,) = await self._store.check([write.hold])
        return Loss.ERROR if verdict.refusal is None else LOSS_OF.get(verdict.refusal, Loss.ERROR)

    async def now(self) -> int:
        return await self._store.now()

    def undo(self, context: Context, undo: NewJob) -> None:
        """Store a compensation soon. The handler does not wait for it, but the report of its end does."""
        context_access.loop_of(context).call_soon_threadsafe(self._keep_undo, context, undo)

    def _keep_undo(self, context: Context, undo: NewJob) -> None:
        self._begin(self._keep_undos(context_access.record_of(context).id, undo))

    def _begin(self, keeping: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(keeping, name="perdure words")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def check_answers(self, job: str) -> None:
        """A job went to wait for an answer, which may have arrived while it still ran. (Upkeep would find it later.)"""
        self._begin(self._check_answers(job))

    async def _check_answers(self, job: str) -> None:
        try:
            due = [row for row in await self._store.kv_read(ANSWER, job=job) if row.due_at is not None]
            await deliver(self._store, due)
        except Exception as error:
            log.service_failed("looking for an answer", error)

    async def _keep_undos(self, job: str, undo: NewJob) -> None:
        try:
            await self._store.kv_write([undo_write(job, undo)])
        except Exception as error:  # the report of the handler's end has it, too
            log.service_failed("keeping a compensation", error)

    async def with_undo(self, context: Context | None, change: Change) -> Change:
        """Add the compensations to a change that makes a job dead."""
        await asyncio.gather(*self._keeping)
        return await add_undo(self._store, change, context_access.undos_of(context))

    async def find_cycle(self, change: Change) -> InvalidCall | None:
        """The cycle in the jobs with which a job continues, if there is one. None also when the store does not answer."""
        try:
            return await find_cycle(self._store, change)
        except StoreError as error:
            log.service_failed("looking at what a chain goes on after", error)
            return None

    def _pending_of(self, context: Context) -> _Pending:
        hold = context_access.record_of(context).hold
        pending = self._pending.get(hold)
        if pending is None:
            pending = self._pending[hold] = _Pending(hold)
        return pending

    async def _wait_for_note(self, context: Context, pending: _Pending) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="perdure notes")
        verdict = await asyncio.shield(pending.verdict)
        if verdict.refusal is not None:
            reason = LOSS_OF.get(verdict.refusal, Loss.ERROR)
            raise HoldLost(f"the job is no longer held by this handler: {reason}", reason)

    async def _write(self) -> None:
        try:
            while self._pending:
                batch = list(self._pending.values())[: self._store.chunk]
                for pending in batch:
                    del self._pending[pending.hold]
                await self._write_batch(batch)
        finally:
            self._writing = None

    async def _write_batch(self, batch: Sequence[_Pending]) -> None:
        notes = [Note(pending.hold, pending.progress, tuple(pending.lines)) for pending in batch]
        try:
            verdicts = await self._store.note(notes)
            for pending, verdict in zip(batch, verdicts, strict=True):
                if not pending.verdict.done():
                    pending.verdict.set_result(verdict)
        except BaseException as error:  # whoever waits for a verdict gets one, whatever breaks
            for pending in batch:
                if not pending.verdict.done():
                    pending.verdict.set_exception(
                        error if isinstance(error, Exception) else StoreError("it was given up")
                    )
                    pending.verdict.exception()  # a caller that was cancelled meanwhile does not fetch it
            if not isinstance(error, Exception):
                raise
