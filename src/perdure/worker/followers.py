"""What a worker does for jobs that wait for jobs: it reads the results of their parents before they begin, and lets the
followers of a job go step by step when they are very many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..errors import InvalidCall
from ..observe import log
from ..storage.contract import Storage
from .attempt import Attempt
from .parents import bring_parents
from .patience import Patience

Fit = Callable[[list[Attempt]], None]
Unfit = Callable[[Attempt, InvalidCall | None], None]


class Followers:
    """`fit` gets attempts that may begin; `unfit` those that cannot, with what is wrong with them, or None where it was the
    store."""

    def __init__(self, store: Storage, patience: Patience, fit: Fit, unfit: Unfit) -> None:
        self._store = store
        self._patience = patience
        self._fit = fit
        self._unfit = unfit
        self._bringing: dict[asyncio.Task[None], int] = {}
        self._settling: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Attempts whose parents are being read."""
        return sum(self._bringing.values())

    def bring(self, attempts: Sequence[Attempt]) -> None:
        """Read what these jobs get of their parents, then let them begin."""
        bringing = asyncio.get_running_loop().create_task(self._brought(attempts), name="perdure parents")
        self._bringing[bringing] = len(attempts)
        bringing.add_done_callback(self._bringing.pop)

    def settle(self) -> None:
        """A job with very many followers has ended."""
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle(), name="perdure settling")

    def under_way(self) -> list[asyncio.Task[None]]:
        return [*self._bringing, *([self._settling] if self._settling is not None else [])]

    async def _brought(self, attempts: Sequence[Attempt]) -> None:
        try:
            unfit = await bring_parents(self._store, attempts)
        except Exception as error:
            log.service_failed("reading the results of parents", error)
            for attempt in attempts:
                self._unfit(attempt, None)
            return
        for attempt, why in unfit.items():
            self._unfit(attempt, why)
        self._fit([attempt for attempt in attempts if not attempt.ended and attempt not in unfit])

    async def _settle(self) -> None:
        try:
            while await self._patience.answer(self._store.settle(self._store.chunk)):
                pass
        except Exception as error:  # upkeep goes on with it
            log.service_failed("settling edges", error)
