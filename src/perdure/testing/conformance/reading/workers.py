"""heartbeat, remove_worker and workers: which workers are alive."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.storage.contract import Storage, WorkerRow

from ..tools import MovableClock, assert_equal


async def case_a_sign_of_life(store: Storage, clock: MovableClock) -> None:
    now = await store.now()
    row = WorkerRow("w1", now - 50, 0, 3, '{"host": "a", "pid": 1}')
    await store.heartbeat(row)
    wanted = [WorkerRow("w1", now - 50, now, 3, '{"host": "a", "pid": 1}')]
    assert_equal(await store.workers(SECOND), wanted, "seen_at is the store's clock; the rest is what the worker sent")
    clock.advance(5)
    await store.heartbeat(WorkerRow("w1", now - 50, 0, 0, "{}"))
    wanted = [WorkerRow("w1", now - 50, now + 5 * SECOND, 0, "{}")]
    assert_equal(await store.workers(SECOND), wanted, "the latest sign of life counts")


async def case_by_id(store: Storage, clock: MovableClock) -> None:
    for id in ("w2", "w1", "w3"):
        await store.heartbeat(_worker(id))
    assert_equal([row.id for row in await store.workers(SECOND)], ["w1", "w2", "w3"], "by id")


async def case_leave(store: Storage, clock: MovableClock) -> None:
    await store.heartbeat(_worker("w1"))
    await store.heartbeat(_worker("w2"))
    await store.remove_worker("w1")
    await store.remove_worker("nobody")
    assert_equal([row.id for row in await store.workers(SECOND)], ["w2"], "a worker that left is forgotten")


async def case_older_ones_are_forgotten(store: Storage, clock: MovableClock) -> None:
    await store.heartbeat(_worker("old"))
    clock.advance(10)
    await store.heartbeat(_worker("new"))
    assert_equal([row.id for row in await store.workers(10 * SECOND)], ["new", "old"], "seen within this time")
    assert_equal([row.id for row in await store.workers(9 * SECOND)], ["new"], "not seen within this time")
    assert_equal([row.id for row in await store.workers(10 * SECOND)], ["new"], "older ones are forgotten")


def _worker(id: str) -> WorkerRow:
    return WorkerRow(id, 1, 0, 0, "{}")
