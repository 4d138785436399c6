"""How the outside learns that a worker lives, and that it is ready: over HTTP and through a file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time

import pytest

from perdure import InvalidCall, Perdure, State, __version__
from perdure.worker.health import claim_watchdog
from perdure.worker.health.probe import Condition, Probe, lives
from tests.support.waiting import eventually, stays
from tests.system.healing.test_healing import Stuck


@pytest.fixture
def shop():
    app = Perdure("memory://")

    @app.task
    async def work(n: int) -> int:
        return n

    return app, work


async def ask(probe: Probe, path: str, *, method: str = "GET") -> tuple[int, dict]:
    status, body = await said(probe, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return status, json.loads(body or "{}")


async def said(probe: Probe, words: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", probe.port)
    try:
        writer.write(words)
        heard = (await asyncio.wait_for(reader.read(), 20)).decode()
    finally:
        writer.close()
    head, _, body = heard.partition("\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


async def test_a_worker_lives_and_is_ready(shop):
    app, _ = shop
    worker = app.worker(poll=0.1, queues=["default"], concurrency=3)
    async with app, Probe.of(worker, port=0) as probe:
        assert (await ask(probe, "/live"))[0] == 200
        status, told = await ask(probe, "/ready")
        assert (status, told["why"]) == (503, "it is not at work")
        async with worker:
            status, told = await ask(probe, "/ready")
            assert status == 200
            assert told["worker"] == worker.id
            assert told["version"] == __version__
            assert told["tasks"] == ["work"]
            assert told["queues"] == ["default"]
            assert (told["concurrency"], told["running"], told["pid"]) == (3, 0, os.getpid())
            assert 0 <= told["last_claim"] < 10
        assert (await ask(probe, "/ready"))[0] == 503
        assert (await ask(probe, "/live"))[0] == 200, "a worker that stops is not to be killed"


async def test_a_worker_whose_claims_are_not_answered_lives_and_is_not_ready(shop, monkeypatch):
    monkeypatch.setattr(claim_watchdog, "UNANSWERED", 0.2)
    app, work = shop
    async with app:
        store = Stuck(await app._runtime.storage())

        async def storage():
            return store

        monkeypatch.setattr(app._runtime, "storage", storage)
        store.answer_timeout = 0.1
        worker = app.worker(poll=0.1)
        async with worker, Probe.of(worker, port=0) as probe:
            store.hangs = True

            async def refuses():
                return (await ask(probe, "/ready"))[0] == 503

            await eventually(refuses)
            assert "no claim has been answered" in (await ask(probe, "/ready"))[1]["why"]
            assert (await ask(probe, "/live"))[0] == 200
            store.hangs = False
            assert await (await work.enqueue(1)).result(timeout=10) == 1
            assert (await ask(probe, "/ready"))[0] == 200


async def test_a_worker_with_a_dead_loop_does_not_live(shop):
    app, _ = shop
    worker = app.worker(poll=0.1)
    async with app, worker, Probe.of(worker, port=0) as probe:
        keeper = next(service for service in worker._control.session.services if service.name == "keeper")
        keeper._task.cancel()
        await asyncio.wait([keeper._task])
        status, told = await ask(probe, "/live")
        assert (status, told["why"]) == (503, "keeper has ended")


async def test_what_else_is_asked_is_answered_or_dropped(shop):
    app, _ = shop
    async with app, Probe.of(app.worker(), port=0) as probe:
        assert (await ask(probe, "/"))[0] == 404
        assert (await ask(probe, "/live", method="POST"))[0] == 405
        assert (await ask(probe, "/live", method="HEAD")) == (200, {})
        for target in ("0", "-1", "x", "inf", "nan"):
            assert (await ask(probe, f"/scale?target={target}"))[0] == 400
        assert await said(probe, b"x" * 20_000) == (0, "")
        assert (await ask(probe, "/live"))[0] == 200
        taken = Probe.of(app.worker(), port=probe.port)
        with pytest.raises(InvalidCall, match="cannot listen"):
            await taken.start()
    with pytest.raises(InvalidCall, match="a port or a file"):
        Probe.of(app.worker())


async def test_a_probe_of_something_else_than_a_worker():
    """A supervisor tells the condition of its runners."""
    condition = Condition(live=True, ready=False, why="two of four runners are starting", facts={"runners": 4})
    async with Probe(lambda: condition, port=0) as probe:
        assert await ask(probe, "/ready") == (
            503,
            {"live": True, "ready": False, "why": "two of four runners are starting", "runners": 4},
        )
        assert (await ask(probe, "/scale"))[0] == 404


async def test_who_asks_for_the_scale_of_a_silent_store_is_told_so_in_time(monkeypatch):
    monkeypatch.setattr("perdure.worker.health.probe.ANSWERED_WITHIN", 0.1)

    async def silent(target):
        await asyncio.sleep(60)

    async with Probe(lambda: Condition(live=True, ready=True), port=0, scale=silent) as probe, asyncio.timeout(10):
        assert await ask(probe, "/scale") == (503, {"error": "the store has not answered within 0.1 s"})


async def test_the_file_is_touched_while_the_worker_lives(shop, tmp_path, monkeypatch):
    monkeypatch.setattr("perdure.worker.health.probe.TOUCHED_EVERY", 0.05)
    app, _ = shop
    file = tmp_path / "worker"
    assert not lives(file)
    worker = app.worker(poll=0.1)
    async with app, worker, Probe.of(worker, file=file):
        assert lives(file)
        assert json.loads(file.read_text())["ready"]
        os.utime(file, (0, 0))
        assert not lives(file)
        async with asyncio.timeout(10):
            while not lives(file):
                await asyncio.sleep(0.02)
        worker._control.session.services[0]._task.cancel()
        await eventually(lambda: not worker._control.condition().live)
        old = time.time() - 60
        os.utime(file, (old, old))
        await stays(lambda: not lives(file), 0.3)  # a worker that does not live leaves it alone
    assert not file.exists()


async def test_a_file_that_could_not_be_written_for_a_while(shop, tmp_path, monkeypatch, caplog):
    """A full disk, a folder that was away: the file is touched again when that is over, and the log has one line of it."""
    monkeypatch.setattr("perdure.worker.health.probe.TOUCHED_EVERY", 0.02)
    app, _ = shop
    file = tmp_path / "run" / "worker"
    file.parent.mkdir()
    worker = app.worker(poll=0.1)
    async with app, worker, Probe.of(worker, file=file), asyncio.timeout(60):
        shutil.rmtree(file.parent)
        while "the probe cannot write" not in caplog.text:
            await asyncio.sleep(0.02)
        await stays(lambda: caplog.text.count("the probe cannot write") == 1, 0.2)
        file.parent.mkdir()
        while not lives(file):
            await asyncio.sleep(0.02)


async def test_a_worker_claims_only_what_it_knows(app):
    """Also where the unknown stands in front: it stays ready for a worker that knows it."""
    from perdure.testing.conformance.tools import job

    @app.task
    async def known() -> str:
        return "known"

    async with app:
        store = await app._runtime.storage()
        (stranger,) = await store.enqueue([job(task="unknown", priority=9)])
        async with app.worker(poll=0.05):
            assert await (await known.enqueue()).result(timeout=10) == "known"
        (seen,) = await store.get([stranger.id])
        assert (seen.state, seen.attempt) == (State.READY, 0)
