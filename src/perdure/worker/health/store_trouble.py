"""Handles trouble of the store that a handler meets: the job is not charged, and nothing is claimed until the store works.

A call of a handler may fail because the store is out of reach, has no connection left or fails over. The job goes back free
of charge. The worker's own exchanges may still work, on connections that are open; the worker would claim the job again at
once, and others with it. So it stops claiming, and tries what handlers need, a transaction, until that works.

A job may also cause the trouble itself: it ends its own connection, or runs a statement that crashes the server. So the
number of free hand-backs in a row has a limit.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from ...core.clock import SECOND
from ...core.growing_pause import GrowingPause
from ...errors import StoreError, StoreUnavailable
from ...observe import log
from ...storage.contract import Storage
from ..claiming.answer_timeout import AnswerTimeout
from ..claiming.wakeup import Wakeup

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two tries
NEW_TROUBLE = 10.0  # seconds after which trouble that comes again is a new one
FREE_ALONE = 5  # free hand-backs of a job in a row while the store works for everybody else
FREE_AT_ALL = 25  # free hand-backs of a job in a row, whoever else has trouble
COUNTED_JOBS = 10_000
LONG_WAIT = 1.0  # seconds: a store that has not answered for so long is in trouble
_NO_JOB = "00000000-0000-7000-8000-000000000000"
ANSWERS_WITHIN = 2.0  # seconds that a store gets to show that it works


def is_store_trouble(error: BaseException, place: str) -> bool:
    """Whether the store at this place is the one to blame: for this error, or for all errors of an exception group."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_store_trouble(each, place) for each in error.exceptions)
    return isinstance(error, StoreUnavailable) and error.place == place


def is_long_wait(seconds: float, timeout: float) -> bool:
    """Whether an attempt whose time ended has waited so long for one answer of the store that the store is to blame."""
    return seconds >= min(LONG_WAIT, timeout / 2)


async def works_for_handlers(store: Storage) -> bool:
    """Whether the store does, within a short time, what handlers need."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            await _try_what_handlers_need(store)
    except (StoreError, TimeoutError):
        return False
    return True


class FreeHandBacks:
    """Counts how often in a row jobs went back free of charge because of the store."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}  # by job
        self._last = ""  # the job that was handed back last
        self._alone = 0  # how often it was, while the store worked for everybody else

    def take_one(self, job: str) -> bool:
        """Count one more hand-back of this job. False when it had its share: this one is a failure of the job."""
        if len(self.counts) >= COUNTED_JOBS and job not in self.counts:
            self.forget(next(iter(self.counts)))
        if job != self._last:
            self._last, self._alone = job, 0
        self._alone += 1
        count = self.counts[job] = self.counts.get(job, 0) + 1
        return self._alone <= FREE_ALONE and count <= FREE_AT_ALL

    def forget(self, job: str) -> None:
        """The job ended in another way."""
        if self.counts.pop(job, None) is not None and job == self._last:
            self.saw_outage()

    def saw_outage(self) -> None:
        """The store failed others too: no single job is to blame."""
        self._last, self._alone = "", 0


class StoreRecovery:
    """Waits until a store that failed a handler works again, then signals the claim loop. Nothing is claimed meanwhile."""

    def __init__(self, store: Storage, wakeup: Wakeup) -> None:
        self._store = store
        self._wakeup = wakeup
        self._timeout = AnswerTimeout(store.answer_timeout)
        self._pause = GrowingPause(SHORTEST_PAUSE, LONGEST_PAUSE)
        self._recovered_at = -NEW_TROUBLE
        self._trying: asyncio.Task[None] | None = None
        self.under_way = False
        self.free_hand_backs = FreeHandBacks()

    def begin(self) -> bool:
        """The store failed a handler. False when the recovery is under way already."""
        if self.under_way:
            return False
        self.under_way = True
        log.claims_no_more()
        if monotonic() - self._recovered_at >= NEW_TROUBLE:
            self._pause.reset()
        self._trying = asyncio.get_running_loop().create_task(self._try(), name="perdure recovery")
        return True

    def close(self) -> None:
        if self._trying is not None:
            self._trying.cancel()

    async def _try(self) -> None:
        while True:
            await asyncio.sleep(self._pause.next())
            try:
                await self._timeout.answer(_try_what_handlers_need(self._store))
                break
            except StoreError:
                self.free_hand_backs.saw_outage()
                continue
            except Exception as error:  # a bug of ours must not stop all work
                log.service_failed("looking whether the store works again", error)
                break
        self._recovered_at = monotonic()
        self.under_way = False
        log.claims_again()
        self._wakeup.signal()


async def _try_what_handlers_need(store: Storage) -> None:
    try:
        transaction = await store.begin_transaction(SECOND)
    except StoreUnavailable:
        raise
    except StoreError:  # it has no transactions
        await store.now()
    else:
        await transaction.rollback()
        await store.get([_NO_JOB])  # a driver may begin and end a transaction without asking its server
