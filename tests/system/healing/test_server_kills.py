"""Servers that are killed at the worst moment. When they are back, no job stays behind: leases are long here, so nothing but
the worker itself can bring one back."""

from __future__ import annotations

import asyncio
import time

import pytest

import servers
from perdure import Backoff, Perdure, State, group
from tests.support.real_servers import decline

KILLS = 3
FLOWS = 12
WIDTH = 6


@pytest.fixture(params=["postgres", "valkey", "mongo"])
def server(request):
    """A server of our own, to be killed."""
    kind = request.param
    try:
        own = servers.start(kind, settings={"appendfsync": "always"} if kind == "valkey" else {})
    except servers.NotAvailable as missing:
        decline(kind, missing)
    with own:
        if own.process is None:
            pytest.skip("the server that the environment names is not ours to kill")
        yield own


class Flows:
    """Parents and followers; every other follower has parents of its own."""

    def __init__(self, app: Perdure) -> None:
        self.app = app
        self.handles = []

        @app.task(backoff=Backoff.fixed(0.05), max_attempts=None)
        async def parent(n: int) -> int:
            return n

        @app.task(backoff=Backoff.fixed(0.05), max_attempts=None)
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        self.parent, self.total = parent, total

    async def enqueue(self) -> None:
        for _ in range(FLOWS):
            flow = group(*(self.parent.call(n) for n in range(WIDTH))).then(self.total)
            self.handles.append(await self.app.enqueue(flow))

    async def all_done(self, within: float) -> None:
        until = time.monotonic() + within
        for handle in self.handles:
            assert await handle.result(timeout=until - time.monotonic()) == sum(range(WIDTH))


async def test_followers_whose_parents_are_being_read_when_the_server_is_killed(server, monkeypatch):
    app = Perdure(server.fresh(), lease=600)
    flows = Flows(app)
    async with app:
        store = await app._runtime.storage()
        get, reading = store.get, asyncio.Event()

        async def get_noticed(ids):
            if not reading.is_set():
                reading.set()
                await asyncio.sleep(0.05)  # the server dies under this call
            return await get(ids)

        monkeypatch.setattr(store, "get", get_noticed)
        reading.set()
        async with app.worker(poll=0.1):
            for _ in range(KILLS):
                await flows.enqueue()
                reading.clear()
                await asyncio.wait_for(reading.wait(), 60)
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(0.2)
                await asyncio.to_thread(server.restart)
            await flows.all_done(within=90)
            stuck = await app.jobs.count(state=State.RUNNING)
            assert stuck == 0
            assert len(flows.handles) == KILLS * FLOWS
