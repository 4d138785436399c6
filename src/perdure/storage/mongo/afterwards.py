"""What is done right after a commit, in transactions of its own: whatever becomes of it, word of it is on record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from perdure.errors import StoreError
from perdure.storage.contract import Carried

from . import carrying, edges
from .settling import settle
from .steps import Steps

_log = logging.getLogger("perdure")
PATIENCE = 0.5  # seconds; others may be at it, and what is left is found by upkeep


class Write(Protocol):
    """Take steps in a transaction."""

    async def __call__(self, steps: Callable[[], Steps[Any]], *, patience: float | None = None) -> Any: ...


class Afterwards:
    """The rest of a verb's work."""

    def __init__(
        self, write: Write, now: Callable[[], int], tell: Callable[[Collection[str], bool], None], chunk: int
    ) -> None:
        self._write = write
        self._now = now
        self._tell = tell
        self._chunk = chunk

    async def settle(self, entries: Sequence[str]) -> None:
        """Settle what was put on the list, if nobody is in the way."""
        if not entries:
            return
        try:
            followed = await self._write(lambda: settle(self._chunk, self._now(), entries), patience=PATIENCE)
        except StoreError:
            _log.debug("edges are left for upkeep to settle", exc_info=True)
        else:
            self._tell(followed.ready, followed.changed)

    async def make_edges(self, entries: Sequence[str]) -> None:
        """Make the edges of which there were too many for one transaction."""
        while entries:
            followed = await self._write(lambda: settle(self._chunk, self._now(), entries))
            self._tell(followed.ready, followed.changed)
            if not followed.looked:
                return

    async def restore_edges(self, jobs: Sequence[Carried]) -> None:
        """The same for jobs that were carried here; who is interrupted says it all again."""
        ids = [job.record.id for job in jobs]
        while await self._write(lambda: edges.loosen(ids)):
            pass
        wanted = carrying.edges_of(jobs)
        for begin in range(0, len(wanted), edges.AT_ONCE):
            await self._write(partial(edges.put, wanted[begin : begin + edges.AT_ONCE]))
