"""A thread that holds SQLite's write lock itself when it enqueues, while a worker of its process waits for that lock."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from perdure import JobHandle, Perdure


@pytest.mark.parametrize("outbox", [False, True], ids=["store", "outbox"])
async def test_the_first_blocking_verb_of_a_thread_is_an_enqueue_in_its_own_write_transaction(tmp_path, outbox):
    """The store opens without writing: its writer waits for the lock, and the lock's owner for the store."""
    path = tmp_path / "jobs.db"
    app = Perdure(f"sqlite:///{path}", outbox=f"sqlite:///{path}" if outbox else None)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    locked, worker_waits = threading.Event(), threading.Event()
    done: list[JobHandle[int]] = []

    def caller() -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("begin immediate")
        locked.set()
        assert worker_waits.wait(20)
        done.append(double.using(connection=connection).sync.enqueue(4))
        connection.execute("commit")
        connection.close()

    async with app, app.worker(poll=0.05):
        assert await (await double.enqueue(1)).result(timeout=20) == 2
        thread = threading.Thread(target=caller)
        thread.start()
        assert await asyncio.to_thread(locked.wait, 20)
        writing = asyncio.create_task(app.queues.pause("other"))  # the writer is at it, and finds the file locked
        await asyncio.sleep(0.2)
        worker_waits.set()
        await asyncio.to_thread(thread.join, 15)
        assert done, "the enqueue waits for the lock that its own caller holds"
        await writing
        assert await done[0].result(timeout=20) == 8
