"""A worker whose claims nobody answers: what it mends itself, when it says that only a restart helps, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from perdure import Perdure, StoreError
from perdure.worker.health import claim_watchdog
from perdure.worker.health.probe import Probe
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.plant import Plant
from tests.support.waiting import eventually, wait_until


class Deaf:
    """A store whose exchanges hang. `heals`: until it is connected anew; `refuses`: that fails, too."""

    def __init__(self, real, *, heals: bool = False, refuses: bool = False) -> None:
        self._real = real
        self._heals = heals
        self._refuses = refuses
        self.hangs = False
        self.reconnected = 0

    def __getattr__(self, name):
        return getattr(self._real, name)

    async def exchange(self, *asked):
        if self.hangs:
            await asyncio.Event().wait()
        return await self._real.exchange(*asked)

    async def reconnect(self) -> None:
        self.reconnected += 1
        if self._refuses:
            raise StoreError("nobody is there")
        await self._real.reconnect()
        if self._heals:
            self.hangs = False


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(claim_watchdog, "TICK", 0.1)
    monkeypatch.setattr(claim_watchdog, "UNANSWERED", 0.3)
    monkeypatch.setattr(claim_watchdog, "STUCK", 0.8)


async def deaf_app(url: str, monkeypatch, **how: bool):
    app = Perdure(url)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    deaf = Deaf(await app._runtime.storage(), **how)

    async def storage():
        return deaf

    monkeypatch.setattr(app._runtime, "storage", storage)
    return app, double, deaf


async def test_connections_are_replaced_when_a_new_pump_does_not_help(monkeypatch, caplog):
    app, double, deaf = await deaf_app("memory://", monkeypatch, heals=True)
    async with app, app.worker(poll=0.1) as worker:
        assert await (await double.enqueue(1)).result(timeout=10) == 2
        deaf.hangs = True
        assert await (await double.enqueue(2)).result(timeout=20) == 4
        assert deaf.reconnected == 1
        await eventually(lambda: worker._control.condition().ready)
        assert 2 <= caplog.text.count("is restarted") <= 4
        assert "only a restart" not in caplog.text


async def test_a_store_that_cannot_be_reached_is_no_reason_to_restart(monkeypatch):
    """Nor is one that refuses: a new process would find the same."""
    app, double, deaf = await deaf_app("memory://", monkeypatch, refuses=True)
    async with app, app.worker(poll=0.1) as worker:
        deaf.hangs = True
        await double.enqueue(1)
        await eventually(lambda: deaf.reconnected >= 3)
        condition = worker._control.condition()
        assert condition.live
        assert not condition.ready


async def test_claims_that_are_refused_are_no_reason_to_replace_anything(monkeypatch, caplog):
    app, _, deaf = await deaf_app("memory://", monkeypatch)

    async def refused(*asked):
        raise StoreError("not for you")

    async with app, app.worker(poll=0.1) as worker:
        deaf.exchange = refused
        await eventually(lambda: caplog.text.count("is restarted") >= 4)
        assert deaf.reconnected == 0
        assert worker._control.condition().live


@pytest.mark.parametrize("store", ["memory", "sqlite", *OF_EACH_KIND])
async def test_only_a_restart_helps(store, tmp_path, monkeypatch, machine):
    """/live turns red, and SIGTERM ends the worker within five seconds, whatever its grace."""
    app, double, deaf = await deaf_app(address(store, tmp_path), monkeypatch)
    worker = app.worker(poll=0.1, grace=60)
    async with app:
        running = asyncio.create_task(worker.run())
        assert await (await double.enqueue(1)).result(timeout=20) == 2
        async with Probe.of(worker, port=0) as probe:
            assert await _status(probe, "/live") == 200
            deaf.hangs = True
            await double.enqueue(2)
            await eventually(lambda: not worker._control.condition().live)
            assert await _status(probe, "/live") == 503
            assert "restart" in str(worker._control.condition().why)
            assert deaf.reconnected == 1
            began = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(running, 50)
    assert time.monotonic() - began < machine.seconds(5)


async def _status(probe: Probe, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", probe.port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


STUCK = """
from perdure.worker.health.claim_watchdog import ClaimWatchdog
ClaimWatchdog.stuck = property(lambda self: os.path.exists({stuck!r} + str(os.getpid())), lambda self, value: None)
"""


def test_a_supervisor_replaces_a_runner_that_only_a_restart_helps(tmp_path):
    """What it held goes back, free of charge."""
    stuck, gate = str(tmp_path / "stuck"), tmp_path / "gate"
    plant = Plant(tmp_path, address("sqlite", tmp_path), STUCK.format(stuck=stuck))

    async def story() -> None:
        async with plant.app:
            id = await plant.enqueue("waits", str(gate))
            first = await asyncio.to_thread(wait_until, lambda: plant.lines(id))
            (tmp_path / f"stuck{first[0].pid}").touch()
            second = await asyncio.to_thread(wait_until, lambda: plant.lines(id)[1:])
            assert second[0].pid != first[0].pid
            gate.touch()
            job = await plant.ended(id)
            assert (job.failures, job.losses) == (0, 0)

    plant.start()
    try:
        asyncio.run(story())
    finally:
        plant.stop()
    assert "only a restart helps" in plant.said()
