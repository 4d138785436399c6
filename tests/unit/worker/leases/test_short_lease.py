"""A stored lease may be next to nothing, if somebody else wrote it: the worker that holds such a job must not spin."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Backoff, Perdure, State
from perdure.core.job import FINAL
from perdure.core.lifecycle import LOSSES_ALLOWED
from perdure.testing.conformance.tools import job
from tests.support.addresses import OF_EACH_KIND, address


@pytest.mark.parametrize("lease", [0, 1, 1000])
async def test_a_lease_of_nothing_does_not_keep_the_worker_busy(lease):
    app = Perdure("memory://")

    @app.task
    async def lasts() -> None:
        await asyncio.sleep(0.5)

    @app.task
    async def other() -> int:
        return 1

    async with app.worker(concurrency=4):
        store = await app._runtime.storage()
        renewals = 0
        renew = store.renew

        async def counted(*given, **options):
            nonlocal renewals
            renewals += 1
            return await renew(*given, **options)

        store.renew = counted
        await store.enqueue([job(task="lasts", lease=lease)])
        await asyncio.sleep(0.3)
        handle = await other.enqueue()
        assert await handle.result(timeout=10) == 1
        await asyncio.sleep(0.3)
        assert renewals < 40
    await app.close()


@pytest.mark.parametrize("lease", [0, 1])
@pytest.mark.parametrize("store", ["memory", "sqlite", *OF_EACH_KIND])
async def test_a_job_whose_lease_is_nothing_fails_instead_of_coming_back_for_ever(store, lease, tmp_path):
    app = Perdure(address(store, tmp_path))

    @app.task
    async def work() -> None: ...

    async with app.worker(concurrency=4, poll=0.1):
        storage = await app._runtime.storage()
        doomed = job(task="work", lease=lease, max_attempts=2, backoff=Backoff.fixed(0.01).text())
        await storage.enqueue([doomed])
        async with asyncio.timeout(30):
            while (record := (await storage.get([doomed.id]))[0]).state not in FINAL:
                await asyncio.sleep(0.05)
    await app.close()
    assert record.state is State.DEAD
    assert record.attempt <= 2 + LOSSES_ALLOWED
