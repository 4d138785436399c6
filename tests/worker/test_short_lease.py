"""A stored lease may be next to nothing, if somebody else wrote it: the worker that holds such a job must not spin."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Perdure
from perdure.testing.conformance.tools import job


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
        store = await app._storage()
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
