"""Carries what handlers say on their way (progress, log lines) to the store. Words that come while a write is under way
are gathered into the next one; of several progress values of one job the last counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..context import Context
from ..errors import HoldLost
from ..job import Hold, Loss
from ..storage.contract import LOSS_OF, Note, Storage, StoreTransaction, Verdict

LONGEST_TRANSACTION = 5_000_000


class _Pending:
    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self.progress: str | None = None
        self.lines: list[str] = []
        self.told: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()


class StoreSpeaker:
    """The worker's voice for its handlers."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self._pending: dict[Hold, _Pending] = {}
        self._writing: asyncio.Task[None] | None = None

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

    def _pending_of(self, context: Context) -> _Pending:
        hold = context._record.hold
        pending = self._pending.get(hold)
        if pending is None:
            pending = self._pending[hold] = _Pending(hold)
        return pending

    async def _heard(self, context: Context, pending: _Pending) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="holdfast notes")
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
        except Exception as error:
            for pending in taken:
                if not pending.told.done():
                    pending.told.set_exception(error)
                    pending.told.exception()  # a caller that was cancelled meanwhile does not fetch it
            return
        for pending, verdict in zip(taken, verdicts, strict=True):
            if not pending.told.done():
                pending.told.set_result(verdict)
