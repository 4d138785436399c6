"""A job that causes the trouble of the store itself goes back free of charge a few times. Then it counts as a failure."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Backoff, Context, Dead, Perdure, State
from perdure.errors import StoreMisconfigured, StoreUnavailable
from perdure.worker import service
from perdure.worker.health.store_trouble import FREE_ALONE, FREE_AT_ALL, FreeHandBacks
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.faults import Fault

TWICE = {"max_attempts": 2, "backoff": Backoff.fixed(0.01)}


async def ended(app: Perdure, handle):
    async with asyncio.timeout(60):
        while (job := await app.jobs.get(handle.id)).state not in (State.SUCCEEDED, State.DEAD):
            await asyncio.sleep(0.02)
    return job


async def test_a_job_that_always_raises_the_stores_trouble_dies(app):
    @app.task(**TWICE)
    async def work() -> None:
        raise StoreUnavailable("the server ended the connection").at(storage.place)

    @app.task
    async def other() -> None: ...

    async with app:
        storage = await app._runtime.storage()
        async with app.worker(poll=0.02):
            handle = await work.enqueue()
            job = await ended(app, handle)
            await (await other.enqueue()).result(timeout=20)
    assert (job.state, job.failures, job.losses) == (State.DEAD, 2, 0)
    assert job.attempt == FREE_ALONE + 2
    assert "again and again" in job.errors[-1].message
    assert "the server ended the connection" in job.errors[-1].message


@pytest.mark.parametrize("how", ["tx.execute", "tx.connection"])
@pytest.mark.skipif("postgres" not in OF_EACH_KIND, reason="no PostgreSQL here")
async def test_a_job_that_ends_its_own_connection_dies(how, tmp_path):
    app = Perdure(address("postgres", tmp_path))

    @app.task(**TWICE)
    async def work(ctx: Context) -> None:
        tx = await ctx.transaction()
        run = tx.execute if how == "tx.execute" else tx.connection.execute
        await run("SELECT pg_terminate_backend(pg_backend_pid())")

    async with app, app.worker(poll=0.02):
        job = await ended(app, await work.enqueue())
    assert (job.state, job.failures, job.attempt) == (State.DEAD, 2, FREE_ALONE + 2)


def test_only_hand_backs_in_a_row_count():
    free = FreeHandBacks()
    for _ in range(3):
        assert all(free.take_one("a") for _ in range(FREE_ALONE))
        free.forget("a")
    assert all(free.take_one("a") for _ in range(FREE_ALONE))
    assert not free.take_one("a")


def test_an_outage_that_others_meet_too_is_free_for_longer():
    free = FreeHandBacks()
    for _ in range(FREE_AT_ALL // 2):
        assert free.take_one("a")
        assert free.take_one("b")
    for _ in range(FREE_AT_ALL // 2, FREE_AT_ALL):
        assert free.take_one("a")
        free.saw_outage()
    assert not free.take_one("a"), "at last it counts, whoever else has trouble"
    assert free.take_one("b")


# ---- an end that no waiting can store --------------------------------------------------------------
async def test_a_dead_job_is_left_to_its_lease_when_waiting_does_not_help(app, monkeypatch, caplog):
    monkeypatch.setattr(service, "SHORTEST_PAUSE", 0.01)

    @app.task(lease=1)
    async def work(ctx: Context) -> int:
        if ctx.job.attempt == 1:
            fault.left = [StoreMisconfigured("the server's configuration is wrong")]
            raise Dead("it cannot be done")
        return ctx.job.attempt

    async with app:
        storage = await app._runtime.storage()
        fault = Fault(storage, "kv_read", monkeypatch, when="undo".__eq__)  # the scheduler reads others
        async with app.worker(poll=0.05):
            handle = await work.enqueue()
            assert await handle.result(timeout=40) == 2
    told = [line for line in caplog.messages if "waiting does not help" in line]
    assert len(told) == 1
    assert str(handle.id) in told[0]
