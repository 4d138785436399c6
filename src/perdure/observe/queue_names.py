"""The names of queues that have had jobs. Workers and pulls record them once, so that an empty queue is listed too."""

from __future__ import annotations

from collections.abc import Iterable

from ..storage.contract import KvWrite, QueueRow, QueueSettings, Storage

KIND = "queue"
MOST = 10_000  # names that are listed beyond those of queues with settings or waiting jobs


async def queue_rows(store: Storage) -> list[QueueRow]:
    """Every queue that has settings, waiting jobs, or had jobs that somebody claimed; by name."""
    rows = {row.name: QueueRow(QueueSettings(row.name), 0, None) for row in await store.kv_read(KIND, limit=MOST)}
    rows |= {row.settings.name: row for row in await store.queues()}
    return [rows[name] for name in sorted(rows)]


async def record_queues(store: Storage, names: Iterable[str]) -> None:
    """Write down that these queues have had jobs."""
    await store.kv_write([KvWrite(KIND, name, "{}", version=0) for name in names])
