"""Expire: a job that was not started in time is cancelled."""

from __future__ import annotations

from ..errors import IllegalMove
from ..lifecycle import Change, Expired, decide
from ..storage.contract import Storage


async def expire(store: Storage, limit: int) -> int:
    changes: list[Change] = []
    for record in await store.expired(limit):
        try:
            changes.append(decide(record, Expired()))
        except IllegalMove:
            continue
    verdicts = await store.apply(changes) if changes else []
    return sum(verdict.accepted for verdict in verdicts)
