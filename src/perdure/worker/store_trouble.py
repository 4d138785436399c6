"""Trouble of the store under a handler: it is not charged to the job, and nothing is claimed until the store answers again.

A handler's call may fail because the store is out of reach, has no connection left or fails over. The job goes back free of
charge. The worker's own exchanges may work all the same, on connections that it has; it would claim the job again at once,
and others with it. So it stops claiming, and tries what handlers need, a transaction, until that works.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic

from ..clock import SECOND
from ..errors import StoreError, StoreUnavailable
from ..observe import log
from ..storage.contract import Storage
from .patience import Patience

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two tries
NEW_TROUBLE = 10.0  # seconds after which trouble that comes again is a new one


def is_store_trouble(error: BaseException, place: str) -> bool:
    """Whether the store at this place is the one to blame: for this error, or for all errors of an exception group."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_store_trouble(each, place) for each in error.exceptions)
    return isinstance(error, StoreUnavailable) and error.place == place


class StoreRecovery:
    """Waits until a store that failed a handler works again, then calls `recovered`."""

    def __init__(self, store: Storage, recovered: Callable[[], None]) -> None:
        self._store = store
        self._recovered = recovered
        self._patience = Patience(store.answers_within)
        self._pause = SHORTEST_PAUSE
        self._recovered_at = -NEW_TROUBLE
        self._trying: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if monotonic() - self._recovered_at >= NEW_TROUBLE:
            self._pause = SHORTEST_PAUSE
        self._trying = asyncio.get_running_loop().create_task(self._try(), name="perdure recovery")

    def close(self) -> None:
        if self._trying is not None:
            self._trying.cancel()

    async def _try(self) -> None:
        while True:
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            try:
                await self._patience.answer(_try_what_handlers_need(self._store))
                break
            except StoreError:
                continue
            except Exception as error:  # a mistake of ours must not stop all work
                log.service_failed("looking whether the store works again", error)
                break
        self._recovered_at = monotonic()
        log.claims_again()
        self._recovered()


async def _try_what_handlers_need(store: Storage) -> None:
    try:
        transaction = await store.begin(SECOND)
    except StoreUnavailable:
        raise
    except StoreError:  # it has no transactions
        await store.now()
    else:
        await transaction.rollback()
