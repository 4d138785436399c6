"""`app.workers`: the workers that are alive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ..core.clock import SECOND, datetime_of
from ..core.verb import verb
from .base import AdminView

if TYPE_CHECKING:
    from .._sync import SyncWorkers


_SEEN_WITHIN = 60 * SECOND  # a worker sends a heartbeat every ten seconds


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that was seen lately."""

    id: str
    seen_at: datetime
    running: int


class Workers(AdminView):
    """`app.workers`: who is at work.

    >>> from perdure import Perdure
    >>> Perdure("memory://").workers.sync.list()
    ()
    """

    @property
    def sync(self) -> SyncWorkers:
        """The blocking forms of its verbs."""
        from .._sync import SyncWorkers

        return SyncWorkers(self)

    @verb
    async def list(self) -> tuple[WorkerInfo, ...]:
        """Workers seen within the last minute."""
        rows = await (await self._storage()).workers(_SEEN_WITHIN)
        return tuple(WorkerInfo(row.id, datetime_of(row.seen_at), row.running) for row in rows)

    def _spelled(self) -> str:
        return "app.workers"
