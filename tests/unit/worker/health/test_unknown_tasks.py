"""Jobs of a task that no worker knows wait; the log names the task, once."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Perdure
from perdure.storage.contract import WorkerRow
from perdure.testing.conformance.tools import job


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr("perdure.worker.health.unknown_tasks.FIRST_CHECK", 0.05)
    monkeypatch.setattr("perdure.worker.health.unknown_tasks.CHECK_EVERY", 0.05)


async def enqueue(app: Perdure, task: str, queue: str = "default") -> None:
    """A job of a task that the app does not have."""
    await (await app._runtime.storage()).enqueue([job(task=task, queue=queue)])


async def told(caplog, task: str) -> int:
    """How often the log has named it, once it has."""
    async with asyncio.timeout(30):
        while f"are waiting: {task};" not in caplog.text:
            await asyncio.sleep(0.02)
    return caplog.text.count(f"are waiting: {task};")


async def test_each_task_is_named_once(app, soon, caplog):
    @app.task
    async def known() -> str:
        return "done"

    async with app:
        await enqueue(app, "renamed")
        async with app.worker(name="anna"):
            assert await told(caplog, "renamed") == 1
            await enqueue(app, "forgotten")
            assert await told(caplog, "forgotten") == 1
            assert await told(caplog, "renamed") == 1, "though it was looked at again"
            assert await (await known.enqueue()).result(timeout=30) == "done"


async def test_what_others_know_and_what_others_take_is_not_named(soon, caplog):
    app = Perdure("memory://")

    @app.task
    async def known() -> None: ...

    @app.task
    async def of_another() -> None: ...

    async with app:
        await enqueue(app, "elsewhere", "other")
        await enqueue(app, "of_another")
        about = '{"tasks": ["of_the_third"]}'
        await (await app._runtime.storage()).heartbeat(WorkerRow("third", 0, 0, 0, about))
        await enqueue(app, "of_the_third")
        async with app.worker(tasks=["known"], queues=["default"]):
            await enqueue(app, "renamed")
            assert await told(caplog, "renamed") == 1
    assert caplog.text.count("are waiting") == 1


async def test_a_worker_that_fails_unknown_tasks_names_none(soon, caplog):
    app = Perdure("memory://")

    @app.task
    async def known() -> str:
        return "done"

    async with app:
        await enqueue(app, "renamed")
        async with app.worker(unknown="fail"):
            assert await (await known.enqueue()).result(timeout=30) == "done"
            async with asyncio.timeout(30):
                while "no task named 'renamed' is registered" not in caplog.text:
                    await asyncio.sleep(0.02)
    assert "are waiting" not in caplog.text
