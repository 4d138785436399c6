"""kv_read and kv_write: guarded entries, written together with jobs."""

from __future__ import annotations

import asyncio

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Succeeded
from perdure.storage.contract import KvEntry, KvWrite, QueueAtCapacity, QueueSettings, Storage

from ..tools import (
    FORGET,
    MovableClock,
    assert_equal,
    assert_true,
    enqueue_and_claim,
    ids,
    job,
    read_job,
    report,
    unique,
)

ODD = "a\x00b\n\u202e🦀\x1f"


async def case_write_read_take_off(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.kv_read("s"), [], "nothing is there at first")
    assert_equal(
        await store.kv_write([KvWrite("s", ODD, "1"), KvWrite("t", ODD, "2", due_at=5)]), [True, True], "written"
    )
    assert_equal(await store.kv_read("s"), [KvEntry("s", ODD, "1", 1)], "by kind")
    assert_equal(await store.kv_read("t"), [KvEntry("t", ODD, "2", 1, 5)], "with its time")
    await store.kv_write([KvWrite("s", ODD, "é🦀\x00")])
    assert_equal(
        await store.kv_read("s", [ODD, "other"]), [KvEntry("s", ODD, "é🦀\x00", 2)], "written again; the version rises"
    )
    assert_equal(await store.kv_write([KvWrite("s", ODD, None), KvWrite("s", "none", None)]), [True, True], "removed")
    assert_equal(await store.kv_read("s", [ODD]), [], "it is gone")


async def case_guards(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.kv_write([KvWrite("s", "a", "1", version=1)]), [False], "there is none of this version")
    assert_equal(await store.kv_write([KvWrite("s", "a", "1", version=0)]), [True], "there must be none, and is none")
    assert_equal(await store.kv_write([KvWrite("s", "a", "2", version=0)]), [False], "now there is one")
    writes = [
        KvWrite("s", "a", "3", version=1),
        KvWrite("s", "a", "4", version=1),
        KvWrite("s", "b", "5", version=0),
    ]
    assert_equal(
        await store.kv_write(writes), [True, False, True], "as if in list order; one refused, the others written"
    )
    assert_equal(
        [(row.name, row.text, row.version) for row in await store.kv_read("s")], [("a", "3", 2), ("b", "5", 1)], "rows"
    )
    assert_equal(await store.kv_write([KvWrite("s", "a", None, version=1)]), [False], "taking off is guarded too")


async def case_names_and_limit(store: Storage, clock: MovableClock) -> None:
    await store.kv_write([KvWrite("s", name, name) for name in "dbca"])
    assert_equal([row.name for row in await store.kv_read("s")], list("abcd"), "by name")
    assert_equal([row.name for row in await store.kv_read("s", limit=2)], list("ab"), "the first")
    assert_equal(
        [row.name for row in await store.kv_read("s", ["d", "a", "x"])], list("ad"), "those that are asked for"
    )
    assert_equal(await store.kv_read("s", []), [], "none is asked for")


async def case_due(store: Storage, clock: MovableClock) -> None:
    now = await store.now()
    times = {"b": now, "a": now - 1, "c": now + SECOND, "d": None, "e": now}
    await store.kv_write([KvWrite("s", name, "", due_at=at) for name, at in times.items()])
    assert_equal([row.name for row in await store.kv_read("s", due=True)], ["a", "b", "e"], "the earliest first")
    assert_equal([row.name for row in await store.kv_read("s", due=True, limit=1)], ["a"], "at most so many")
    clock.advance(1)
    assert_equal([row.name for row in await store.kv_read("s", due=True)], ["a", "b", "e", "c"], "by the store's clock")


async def case_with_jobs(store: Storage, clock: MovableClock) -> None:
    one, two = job(), job()
    await store.kv_write(
        [KvWrite("s", "a", "1", version=0, jobs=(one,)), KvWrite("s", "a", "2", version=0, jobs=(two,))]
    )
    assert_equal(
        [row is not None for row in await store.get([one.id, two.id])],
        [True, False],
        "jobs are stored with accepted writes only",
    )
    first, again = unique("active"), unique("active")
    await store.enqueue([first])
    assert_equal(await store.kv_write([KvWrite("s", "a", "3", jobs=(again,))]), [True], "a duplicate is no refusal")
    assert_equal(await store.get([again.id]), [None], "and is not stored")


async def case_a_full_queue(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("q", max_depth=1))
    await store.enqueue([job(queue="q")])
    try:
        await store.kv_write([KvWrite("s", "a", "1"), KvWrite("s", "b", "1", jobs=(job(queue="q"),))])
    except QueueAtCapacity:
        pass
    else:
        raise AssertionError("Full must be raised")
    assert_equal(await store.kv_read("s"), [], "nothing of the call is written")


async def case_under_a_hold(store: Storage, clock: MovableClock) -> None:
    held = await enqueue_and_claim(store)
    write = KvWrite("step", f"{held.id}/a", "1", job=held.id, hold=held.hold)
    assert_equal(await store.kv_write([write]), [True], "while it is held")
    await report(store, held.id, Succeeded())
    other = KvWrite("step", f"{held.id}/b", "1", job=held.id, hold=held.hold)
    assert_equal(await store.kv_write([other]), [False], "a write under a lost hold is refused")
    assert_equal([row.name for row in await store.kv_read("step", job=held.id)], [f"{held.id}/a"], "by job")


async def case_removed_with_its_job(store: Storage, clock: MovableClock) -> None:
    held, other = await enqueue_and_claim(store, retention=FORGET), await enqueue_and_claim(store)
    for record in (held, other):
        await store.kv_write([KvWrite("step", record.id, "1", job=record.id)])
    await report(store, held.id, Succeeded())
    clock.advance(3600)
    await store.prune(9)
    assert_equal([row.job for row in await store.kv_read("step")], [other.id], "pruned with the job")


async def case_one_of_many_writers(store: Storage, clock: MovableClock) -> None:
    await store.kv_write([KvWrite("s", "a", "0")])
    jobs = [job() for _ in range(8)]
    writes = [KvWrite("s", "a", new.id, version=1, jobs=(new,)) for new in jobs]
    done = [answer for (answer,) in await asyncio.gather(*(store.kv_write([write]) for write in writes))]
    assert_equal(sum(done), 1, "one of those who know the same version")
    (row,) = await store.kv_read("s")
    stored = [record.id for record in await store.get(ids(jobs)) if record is not None]
    assert_equal(stored, [row.text], "with its job, and no other")
    assert_equal(row.version, 2, "the version rose once")


async def case_carried(store: Storage, clock: MovableClock) -> None:
    held = await enqueue_and_claim(store)
    rows = [
        KvEntry("a", "x", "1", 3, 99, None),
        KvEntry("a", "y", ODD, 1, None, held.id),
        KvEntry("b", "a", "", 7, None, None),
    ]
    await store.restore_kv(rows)
    assert_equal(await store.export_kv(None, 9), rows, "as they are, by kind and name")
    assert_equal(await store.export_kv(("a", "x"), 1), rows[1:2], "page by page")
    await store.restore_kv([KvEntry("a", "x", "2", 3)])
    assert_equal(await store.kv_read("a", ["x"]), [KvEntry("a", "x", "2", 3)], "in place of what is there")
    assert_equal(await store.kv_write([KvWrite("a", "x", "3", version=3)]), [True], "under its version")
    assert_true((await read_job(store, held.id)).id == held.id, "jobs are left alone")
