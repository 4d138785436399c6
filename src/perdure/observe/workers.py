"""The workers that sent a heartbeat lately, and what they reported about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..core.clock import SECOND, datetime_of
from ..storage.contract import Storage, WorkerRow

SEEN_WITHIN = 60 * SECOND


@dataclass(frozen=True)
class Member:
    """A worker. `about` has host, pid, version, python, queues, tasks, concurrency; rows of other versions may lack any."""

    id: str
    seen_at: datetime
    started_at: datetime
    running: int
    about: dict[str, Any]

    @property
    def slots(self) -> int:
        """Jobs that it runs at once."""
        told = self.about.get("concurrency")
        return told if isinstance(told, int) and told > 0 else 1

    def serves(self, queue: str) -> bool:
        told = self.about.get("queues")
        return not isinstance(told, list) or queue in told

    @property
    def ended(self) -> dict[str, tuple[float, float]]:
        """By queue: jobs that ended in it a second lately, and the seconds that one kept a slot."""
        told = self.about.get("ended")
        pairs = told.items() if isinstance(told, dict) else ()
        return {queue: pair for queue, each in pairs if (pair := _pair(each)) is not None}


async def fleet(store: Storage) -> list[Member]:
    """Workers seen within the last minute, by id."""
    return [_member(row) for row in await store.workers(SEEN_WITHIN)]


def _member(row: WorkerRow) -> Member:
    seen, started = datetime_of(row.seen_at), datetime_of(row.started_at)
    return Member(row.id, seen, started, row.running, row.read_about() or {})


def _pair(told: object) -> tuple[float, float] | None:
    match told:
        case [int() | float() as rate, int() | float() as seconds] if rate >= 0 and seconds >= 0:
            return float(rate), float(seconds)
    return None
