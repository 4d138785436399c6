"""The order of an outbox is the order in which its jobs are claimed, whoever made the ids and moved the rows."""

import asyncio

import msgspec
import psycopg

from perdure.core.ids import new_ids, new_stamp
from perdure.storage.contract import Claim, Want

from .scene import Scene


def jobs_of(task, payloads, *, ids=None, **options):
    bound = task.using(**options)._bind()
    made = ids or new_ids(len(payloads))
    hashed = bound.definition.arguments_hash
    return [bound.plan.job(f"[{payload}]", hashed, id) for payload, id in zip(payloads, made, strict=True)]


async def claimed(storage, limit=500):
    records = await storage.claim(Claim("tester", new_stamp(), (Want(limit),)))
    return [int(msgspec.json.decode(record.payload)[0]) for record in records]


async def test_rows_of_processes_with_clocks_apart_keep_their_order(scene):
    ids = new_ids(6)[::-1]  # each greater than the one that was enqueued after it
    async with scene.app as app:
        await scene.open_outbox()
        for number, id in enumerate(ids):
            with scene.transaction() as database:
                await app._runtime.client.enqueue_in_transaction(
                    database, jobs_of(scene.task, [number], ids=[id], key="k")
                )
        await app._runtime.relay().once()
        assert await claimed(await app._runtime.storage()) == list(range(6))


async def test_a_clock_that_goes_back_does_not_turn_the_order_round(tmp_path):
    from perdure.testing import ManualClock

    clock = ManualClock()
    scene = Scene(tmp_path, "sqlite", "memory", clock=clock)
    async with scene.app as app:
        await scene.open_outbox()
        for number in range(4):
            with scene.transaction() as database:
                await app._runtime.client.enqueue_in_transaction(database, jobs_of(scene.task, [number]))
            clock.advance(-10)
        clock.advance(100)
        await app._runtime.relay().once()
        assert await claimed(await app._runtime.storage()) == list(range(4))


async def test_a_transaction_that_commits_late_is_not_skipped(tmp_path):
    """Its rows have lower numbers than those that were moved before them."""
    scene = Scene(tmp_path, "postgres", "memory")
    async with scene.app as app:
        await scene.open_outbox()
        with scene.transaction() as late:
            await app._runtime.client.enqueue_in_transaction(late, jobs_of(scene.task, [1]))
            with scene.transaction() as early:
                await app._runtime.client.enqueue_in_transaction(early, jobs_of(scene.task, [2]))
            relay = app._runtime.relay()
            await relay.once()
            assert await claimed(await app._runtime.storage()) == [2]
        await relay.once()
        assert await claimed(await app._runtime.storage()) == [1]
        assert scene.rows() == []


async def test_many_writers_and_three_relays_keep_the_order_of_every_key(scene):
    """Writers commit and roll back; no job is lost, doubled, or before an earlier one of its key."""
    relaying = [scene.app, scene.another(), scene.another()] if "memory" not in scene.target else [scene.app] * 3
    stopping = asyncio.Event()
    async with scene.app as app:
        outbox = await scene.open_outbox()
        relays = [asyncio.create_task(each._runtime.relay().run(stopping)) for each in relaying]
        written = await asyncio.gather(*(write(scene, key) for key in range(3)))
        async with asyncio.timeout(30):
            while (await outbox.state()).waiting:
                await asyncio.sleep(0.02)
        stopping.set()
        await asyncio.gather(*relays)
        seen = await claimed(await app._runtime.storage())
    for each in relaying[1:]:
        await each.close()
    for key, kept in enumerate(written):
        assert [number for number in seen if number // 1000 == key] == kept
    assert len(seen) == sum(map(len, written))


async def write(scene, key):
    kept = []
    for number in range(20):
        commit = number % 3 != 1
        with scene.transaction(commit=commit) as database:
            await scene.app._runtime.client.enqueue_in_transaction(
                database, jobs_of(scene.task, [1000 * key + number], ids=None, key=f"key {key}")
            )
        kept += [1000 * key + number] if commit else []
        await asyncio.sleep(0.005)
    return kept


async def test_only_one_relay_works_at_a_time(near):
    others = near.another()
    async with near.app as app, others:
        first, second = await near.open_outbox(), await near.open_outbox(others)
        with near.transaction() as database:
            await app._runtime.client.enqueue_in_transaction(database, jobs_of(near.task, [1]))
        async with first.batch(10, []) as ours:
            assert len(ours.entries) == 1
            async with second.batch(10, []) as theirs:
                assert theirs is None
        async with second.batch(10, []) as theirs:
            assert len(theirs.entries) == 1


async def test_callers_do_not_wait_for_a_relay_nor_a_relay_for_callers(near):
    async with near.app as app:
        outbox = await near.open_outbox()
        with near.transaction() as database:
            await app._runtime.client.enqueue_in_transaction(database, jobs_of(near.task, [1]))
        async with outbox.batch(10, []) as batch, asyncio.timeout(15):
            with near.transaction() as database:  # while the relay speaks to the store
                if near.kind == "postgres":
                    database.execute("set lock_timeout = '1s'")
                await app._runtime.client.enqueue_in_transaction(database, jobs_of(near.task, [2]))
            await batch.confirm([batch.entries[0].number], [])
        assert len(near.rows()) == 1
        if near.kind == "postgres":
            with near.transaction(commit=False) as database, psycopg.connect(database.info.dsn):
                await app._runtime.client.enqueue_in_transaction(database, jobs_of(near.task, [3]))
                await app._runtime.relay().once()
                assert near.rows() == []
