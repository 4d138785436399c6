"""What a worker does for jobs that wait for jobs: it reads the results of their parents before they begin, and lets the
followers of a job go step by step when they are very many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from ..errors import InvalidCall
from ..observe import log
from ..outcome import Outcome
from ..storage.contract import Storage
from .attempt import Attempt
from .parents import bring_parents
from .patience import Patience

Fit = Callable[[list[Attempt]], None]
Unfit = Callable[[Attempt, InvalidCall | Outcome | None], None]


class Followers:
    """`fit` gets attempts that may begin; `unfit` those whose handler is not called, with their end, or None where the store
    failed."""

    def __init__(self, store: Storage, patience: Patience, fit: Fit, unfit: Unfit) -> None:
        self._store = store
        self._patience = patience
        self._fit = fit
        self._unfit = unfit
        self._bringing: dict[asyncio.Task[None], Sequence[Attempt]] = {}
        self._settling: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Attempts whose parents are being read."""
        return sum(map(len, self._bringing.values()))

    def at_hand(self) -> Iterator[Attempt]:
        for attempts in self._bringing.values():
            yield from attempts

    def bring(self, attempts: Sequence[Attempt]) -> None:
        """Read what these jobs get of their parents, then let them begin."""
        bringing = asyncio.get_running_loop().create_task(self._brought(attempts), name="perdure parents")
        self._bringing[bringing] = attempts
        bringing.add_done_callback(self._bringing.pop)

    def settle(self) -> None:
        """A job with very many followers has ended."""
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle(), name="perdure settling")

    def under_way(self) -> list[asyncio.Task[None]]:
        return [*self._bringing, *([self._settling] if self._settling is not None else [])]

    async def _brought(self, attempts: Sequence[Attempt]) -> None:
        """Nobody else knows these attempts meanwhile, so they are handed back whatever breaks, also when the pump stops and
        cancels this."""
        try:
            over = await self._patience.answer(bring_parents(self._store, attempts))
            for attempt, why in over.items():
                self._unfit(attempt, why)
        except BaseException as error:
            for attempt in attempts:
                self._unfit(attempt, None)
            if not isinstance(error, Exception):
                raise
            log.service_failed("reading the results of parents", error)
        else:
            self._fit([attempt for attempt in attempts if not attempt.ended])

    async def _settle(self) -> None:
        try:
            while await self._patience.answer(self._store.settle(self._store.chunk)):
                pass
        except Exception as error:  # upkeep goes on with it
            log.service_failed("settling edges", error)
