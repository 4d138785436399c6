"""queues, configure and pause: settings are durable, and the list is correct."""

from __future__ import annotations

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Cancelled
from perdure.storage.contract import QueueCapacity, QueueRow, QueueSettings, Storage

from ..tools import MovableClock, assert_equal, claim, enqueue_and_claim, job, report


async def case_none_at_first(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.queues(), [], "a fresh store has no queues")


async def case_by_name(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("m", max_depth=5))
    await store.pause("z", True)
    await store.enqueue([job(queue="b"), job(queue="a", delay=SECOND), job(queue="c", waits=1)])
    names = [row.settings.name for row in await store.queues()]
    assert_equal(names, ["a", "b", "c", "m", "z"], "every queue that has settings or waiting jobs, by name")


async def case_without_waiting_jobs(store: Storage, clock: MovableClock) -> None:
    await enqueue_and_claim(store, queue="a")
    cancelled = job(queue="b")
    await store.enqueue([cancelled])
    await report(store, cancelled.id, Cancelled())
    assert_equal(await store.queues(), [], "a queue without settings and waiting jobs is not listed")


async def case_settings_come_back(store: Storage, clock: MovableClock) -> None:
    settings = QueueSettings("q", False, 10, "drop", -5, True, '{"acme": 2}')
    await store.configure(settings)
    assert_equal(await store.queues(), [QueueRow(settings, 0, None)], "settings come back as they were written")
    plain = QueueSettings("q")
    await store.configure(plain)
    assert_equal(await store.queues(), [QueueRow(plain, 0, None)], "configure writes all of them")


async def case_paused_is_written_by_pause_alone(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=3))
    await store.pause("q", True)
    await store.configure(QueueSettings("q", paused=False, max_depth=4))
    (row,) = await store.queues()
    assert_equal((row.settings.paused, row.settings.max_depth), (True, 4), "configure leaves `paused`")
    await store.pause("q", False)
    (row,) = await store.queues()
    assert_equal((row.settings.paused, row.settings.max_depth), (False, 4), "pause leaves the other settings")
    await store.configure(QueueSettings("new", paused=True))
    assert_equal((await store.queues())[0].settings, QueueSettings("new"), "configure does not pause a new queue")


async def case_pause_twice(store: Storage, clock: MovableClock) -> None:
    for paused in (True, True, False, False):
        await store.pause("q", paused)
        assert_equal((await store.queues())[0].settings.paused, paused, "pausing is a state, not a count")


async def case_depth(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(queue="q"), job(queue="q"), job(queue="q", delay=SECOND), job(queue="q", waits=1)])
    await store.enqueue([job()])
    assert_equal([row.depth for row in await store.queues()], [1, 4], "depth counts ready, scheduled and blocked jobs")
    await claim(store, 1, queues=("q",))
    assert_equal([row.depth for row in await store.queues()], [1, 3], "and not running ones")


async def case_oldest(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(delay=2 * SECOND)])
    clock.advance(1)
    assert_equal((await store.queues())[0].oldest, None, "nothing is ready")
    clock.advance(1)
    await store.promote(9)
    clock.advance(5)
    await store.enqueue([job()])
    assert_equal((await store.queues())[0].oldest, 5 * SECOND, "how long the oldest ready job has been due")
    clock.advance(-60)
    assert_equal((await store.queues())[0].oldest, 0, "never less than nothing, also when the clock went back")


async def case_rooms(store: Storage, clock: MovableClock) -> None:
    await store.enqueue(
        [job(queue="bounded"), job(queue="bounded", delay=SECOND), job(queue="full"), job(queue="free")]
    )
    bounded = QueueSettings("bounded", max_depth=5, on_full="drop", drop_below=3)
    full = QueueSettings("full", max_depth=1)
    for settings in (bounded, full, QueueSettings("free")):
        await store.configure(settings)
    rooms = await store.queue_capacities()
    assert_equal(
        rooms,
        {"bounded": QueueCapacity(bounded, 3), "full": QueueCapacity(full, 0)},
        "how many more each bounded queue takes, and its policy",
    )
