"""Jobs of a transaction in one database, run from the store in another."""

import asyncio
from datetime import timedelta

import pytest

from perdure import NotFound, ResultTimeout, State, Unique
from perdure.outbox.relay import Relay
from perdure.testing import ManualClock, drain

from .scene import Scene


async def test_what_was_committed_runs_and_what_was_rolled_back_never_was(scene):
    async with scene.app as app, app.worker(poll=0.05):
        with scene.transaction() as database:
            kept = await scene.task.using(connection=database).enqueue("kept")
            assert await app.jobs.get(kept.id) is None
        with scene.transaction(commit=False) as database:
            undone = await scene.task.using(connection=database).enqueue("undone")
        assert await kept.result(timeout=20) == "kept"
        async with asyncio.timeout(20):
            while scene.rows():  # a row leaves once its job is in the store, where it may run sooner than that
                await asyncio.sleep(0.01)
        assert await app.jobs.count() == 1
        with pytest.raises(ResultTimeout):
            await undone.result(timeout=0.05)


async def test_a_list_is_moved_with_everything_that_its_jobs_have(scene):
    special = scene.task.using(
        queue="mail", priority=7, tenant="acme/ö", key="schlüssel", tags=["a", "ä"], meta={"m": "é"}, routing_key="v"
    )
    async with scene.app as app:
        await scene.open_outbox()
        with scene.transaction() as database:
            calls = [special.call("größe \x00 😀")]
            calls += [scene.task.call(number) for number in range(5)]
            handles = await app.enqueue(calls, connection=database)
        await app._runtime.relay().once()
        jobs = [await handle.refresh() for handle in handles]
    assert [job.id for job in jobs] == [handle.id for handle in handles]
    first = jobs[0]
    assert (first.queue, first.priority, first.tenant, first.key) == ("mail", 7, "acme/ö", "schlüssel")
    assert (first.tags, first.meta, first.routing_key) == (("a", "ä"), {"m": "é"}, "v")
    assert first.payload == calls[0]._payload
    assert {job.state for job in jobs} == {State.READY}


async def test_a_handle_waits_for_a_job_that_is_still_in_the_outbox(near):
    async with near.app as app:
        await near.open_outbox()
        with near.transaction() as database:
            job = await near.task.using(connection=database).enqueue(5)
        with pytest.raises(NotFound, match="a relay moves it"):
            await job.refresh()
        waiting = asyncio.create_task(job.result(timeout=20))
        await asyncio.sleep(0)
        await drain(app)
        assert await waiting == 5


async def test_delays_and_expiry_count_from_the_enqueue_and_not_from_the_move(pair, tmp_path):
    clock = ManualClock()
    scene = Scene(tmp_path, *pair, clock=clock)
    began = clock.now()
    async with scene.app as app:
        await scene.open_outbox()
        with scene.transaction() as database:
            later = await scene.task.using(connection=database, delay=3600).enqueue()
            at = await scene.task.using(connection=database, at=began + timedelta(seconds=60)).enqueue()
            soon = await scene.task.using(connection=database).enqueue()
            brief = await scene.task.using(connection=database, expires=50).enqueue()
            lasting = await scene.task.using(connection=database, expires=500).enqueue()
        clock.advance(100)
        await app._runtime.relay().once()
        assert (await later.refresh()).run_at == began + timedelta(seconds=3600)
        assert (await later.refresh()).state is State.SCHEDULED
        assert (await at.refresh()).run_at == began + timedelta(seconds=60)
        assert (await soon.refresh()).run_at == began
        assert (await soon.refresh()).created_at == began + timedelta(seconds=100)
        assert (await lasting.refresh()).expires_at == began + timedelta(seconds=500)
        assert (await brief.refresh()).expires_at <= began + timedelta(seconds=100, microseconds=1)


async def test_unique_keys_are_decided_at_the_store(scene):
    once = scene.task.using(key="k", unique=Unique("active"))
    async with scene.app as app:
        await scene.open_outbox()
        with scene.transaction() as database:
            first = await once.using(connection=database).enqueue(1)
        with scene.transaction() as database:
            second = await once.using(connection=database).enqueue(2)
        assert (first.duplicate, second.duplicate) == (False, False)
        await app._runtime.relay().once()
        assert await app.jobs.count() == 1
        assert (await first.refresh()).state is State.READY
        with pytest.raises(NotFound):
            await second.refresh()
        assert scene.rows() == []


async def test_the_same_row_twice_is_one_job(near):
    """A caller who did not hear the answer repeats its calls, ids included."""
    async with near.app as app:
        await near.open_outbox()
        with near.transaction() as database:
            job = near.task._bind().plan.job("[]", near.task._bind().definition.arguments_hash)
            await app._runtime.client.enqueue_in_transaction(database, [job, job])
            await app._runtime.client.enqueue_in_transaction(database, [job])
        assert len(near.rows()) == 3
        await app._runtime.relay().once()
        assert near.rows() == []
        assert await app.jobs.count() == 1


async def test_enqueueing_needs_no_store(tmp_path, near):
    """The store is only asked when the jobs are moved."""
    app = near.another()
    app._runtime.loops._open_store = lambda: pytest.fail("the store was opened")
    await near.open_outbox()
    task = app.task(name="task")(lambda: None)
    with near.transaction() as database:
        await task.using(connection=database).enqueue()
    assert len(near.rows()) == 1
    await app.close()
    await near.app.close()


def test_blocking_callers_and_sessions_of_sqlalchemy_are_served(near):
    alchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    near.app.sync.close()
    assert near.app.queues.sync.list() == ()  # the first verb makes the outbox, too
    url = near.outbox.partition("?")[0].replace("postgresql:", "postgresql+psycopg:")
    engine = alchemy.create_engine(url)
    with Session(engine) as session, session.begin():
        near.task.using(connection=session).sync.enqueue("in a session")
    with engine.connect() as connection, connection.begin() as begun:
        near.task.using(connection=connection).sync.enqueue("undone")
        begun.rollback()
    engine.dispose()
    drain(near.app)
    assert [job.result for job in near.app.jobs.sync.find().items] == ["in a session"]
    near.app.sync.close()


async def test_a_commit_that_is_told_of_is_moved_without_waiting_for_the_poll(near):
    """Somebody waits for the first moved job; the relay would look by itself only after a minute."""
    from perdure.outbox.relay import Relay

    async with near.app as app:
        outbox = await near.open_outbox()
        relay = Relay(app._runtime.loops.outboxes.get, app._runtime.storage, poll=60)
        stopping = asyncio.Event()
        running = asyncio.create_task(relay.run(stopping))
        while relay._listening_to is None:
            await asyncio.sleep(0.01)
        with near.transaction() as database:
            job = await near.task.using(connection=database).enqueue()
        await app.signal("default")
        async with asyncio.timeout(10):
            while await app.jobs.get(job.id) is None:
                await asyncio.sleep(0.01)
        stopping.set()
        await running
        assert (await outbox.state()).waiting == 0


async def test_a_worker_without_an_outbox_has_no_relay(tmp_path):
    from perdure import Perdure

    app = Perdure("memory://")
    app.task(name="task")(lambda: None)
    worker = app.worker()
    async with app, worker:
        assert "relay" not in [service.name for service in worker._control.session.services]


async def test_connections_of_an_event_loop_are_served(tmp_path):
    import psycopg

    from tests.support.real_servers import server

    asyncpg = pytest.importorskip("asyncpg")
    scene = Scene(tmp_path, "postgres", "memory")
    url = server("postgres").url
    async with scene.app as app:
        async with await psycopg.AsyncConnection.connect(url) as database:
            await scene.task.using(connection=database).enqueue("psycopg")
        database = await asyncpg.connect(url)
        async with database.transaction():
            await scene.task.using(connection=database).enqueue("asyncpg")
        await database.close()
        await drain(app)
        assert {job.result for job in (await app.jobs.find()).items} == {"psycopg", "asyncpg"}


async def test_drain_waits_for_a_job_that_another_relay_is_about_to_move(near, monkeypatch):
    async def taken(_: Relay) -> None:
        """The rows are another relay's, the worker's, so there is nothing to be moved."""

    monkeypatch.setattr(Relay, "once", taken)
    async with near.app as app:
        await near.open_outbox()
        with near.transaction() as database:
            job = await near.task.using(connection=database).enqueue(5)
        await drain(app)
        assert (await job.refresh()).result == 5
