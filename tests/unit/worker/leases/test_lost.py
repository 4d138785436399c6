"""Losing a hold, for every reason, on every store: the coroutine is cancelled, the thread gets the flag, and what either
says afterwards is refused. (Processes: test_processes; timeout and shutdown: test_stopping.)"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing, suppress
from typing import Any

import pytest

from perdure import Context, HoldLost, JobHandle, Loss, Perdure, State, StoreError
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Change, RunnerLost, Succeeded, VersionGuard, decide
from perdure.storage.contract import Claim, Want


async def cancelled(app: Perdure, store: Any, handle: JobHandle[str]):
    await handle.cancel()


async def deleted(app: Perdure, store: Any, handle: JobHandle[str]):
    await app.jobs.delete(handle.id)


async def completed(app: Perdure, store: Any, handle: JobHandle[str]):
    """As an outside completion does it: ended, while the holder still has the hold."""
    (record,) = await store.get([str(handle.id)])
    change = Change(record.id, VersionGuard(record.version), State.SUCCEEDED, result='"outside"', keeps_hold=True)
    (verdict,) = await store.apply([change])
    assert verdict.accepted


async def taken(app: Perdure, store: Any, handle: JobHandle[str]):
    """As a supervisor or a reaper does it: another attempt may begin."""
    (record,) = await store.get([str(handle.id)])
    (verdict,) = await store.apply([decide(record, RunnerLost())])
    assert verdict.accepted


REASONS = {
    Loss.CANCELLED: (cancelled, State.CANCELLED),
    Loss.NOT_FOUND: (deleted, None),
    Loss.ALREADY_COMPLETED: (completed, State.SUCCEEDED),
    Loss.TAKEN_BY_ANOTHER_WORKER: (taken, State.SUCCEEDED),
}


class Scene:
    """Handlers that hear of their loss and speak all the same."""

    def __init__(self, app: Perdure) -> None:
        self.begun: set[str] = set()
        self.heard: dict[str, Loss | None] = {}

        @app.task(lease=6)
        async def loop(ctx: Context) -> str:
            if ctx.job.attempt > 1:
                return "second"
            self.begun.add(str(ctx.job.id))
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.heard[str(ctx.job.id)] = ctx.lost.reason
            return "zombie"

        @app.task(lease=6)
        def thread(ctx: Context) -> str:
            if ctx.job.attempt > 1:
                return "second"
            self.begun.add(str(ctx.job.id))
            while not ctx.lost.is_set():
                threading.Event().wait(0.01)
            with pytest.raises(HoldLost):
                ctx.lost.check()
            self.heard[str(ctx.job.id)] = ctx.lost.reason
            return "zombie"

        self._tasks = loop, thread

    async def enqueue(self) -> list[JobHandle[str]]:
        """One for the loop, one for a thread."""
        return [await task.enqueue() for task in self._tasks]

    async def until(self, seen: Any, count: int) -> None:
        async with asyncio.timeout(20):
            while len(seen) < count:
                await asyncio.sleep(0.02)


async def test_handlers_hear_why_and_their_words_are_refused(app):
    scene = Scene(app)
    async with app:
        async with app.worker(poll=0.1):
            store = await app._runtime.storage()
            handles = {reason: await scene.enqueue() for reason in REASONS}
            await scene.until(scene.begun, 2 * len(REASONS))
            for reason, (strike, _) in REASONS.items():
                for handle in handles[reason]:
                    await strike(app, store, handle)
            await scene.until(scene.heard, 2 * len(REASONS))
            for handle in handles[Loss.TAKEN_BY_ANOTHER_WORKER]:
                assert await handle.result(timeout=20) == "second"
        for reason, (_, state) in REASONS.items():
            for handle in handles[reason]:
                assert scene.heard[str(handle.id)] is reason
                job = await app.jobs.get(handle.id)
                assert (None if job is None else job.state) is state
                if reason is Loss.ALREADY_COMPLETED:
                    assert job.result == "outside"


async def test_a_job_that_another_worker_took_and_finished_was_taken(app):
    @app.task
    async def work() -> str: ...

    async with app:
        handle, store = await work.enqueue(), await app._runtime.storage()
        async with app.claim(tasks=[work]) as (item,):
            await taken(app, store, handle)
            claim = Claim("another", new_stamp(), (Want(1),))
            (record,) = (await store.exchange((), claim)).claimed
            (verdict,) = await store.apply([decide(record, Succeeded('"second"'))])
            assert verdict.accepted
            with pytest.raises(HoldLost) as caught:
                await item.succeed("zombie")
            assert caught.value.reason is item.lost.reason is Loss.TAKEN_BY_ANOTHER_WORKER
        assert await handle.result(timeout=30) == "second"


async def test_a_store_that_does_not_answer_makes_a_lease_untrustworthy(tmp_path):
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")
    scene = Scene(app)

    async def fails(*_: object, **__: object) -> None:
        raise StoreError("it is out of reach")

    async with app, app.worker(poll=0.1):
        store: Any = await app._runtime.storage()
        whole = store.renew, store.check, store.exchange
        handles = await scene.enqueue()
        await scene.until(scene.begun, 2)
        store.renew = store.check = store.exchange = fails
        await scene.until(scene.heard, 2)
        store.renew, store.check, store.exchange = whole
        for handle in handles:
            assert scene.heard[str(handle.id)] is Loss.ERROR
            # nobody else has it: whether its word is still accepted is the store's to say
            assert await handle.result(timeout=20) in ("zombie", "second")


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_handler_whose_lease_was_out_of_trust_succeeds_with_its_rows_or_not_at_all(tmp_path, where):
    """Told that its lease may be over, it writes and returns all the same. The hold stands: rows and completion go along."""
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(lease=6)
    async def loop(ctx: Context) -> str:
        with suppress(asyncio.CancelledError):
            await ctx.lost.wait()
        told.append(ctx.lost.reason)
        tx = await ctx.transaction()
        await tx.execute("insert into mine values (?)", (ctx.job.attempt,))
        return "done"

    @app.task(lease=6)
    def thread(ctx: Context) -> str:
        while not ctx.lost.is_set():
            threading.Event().wait(0.01)
        told.append(ctx.lost.reason)
        tx = ctx.sync.transaction()
        tx.sync.execute("insert into mine values (?)", (ctx.job.attempt,))
        return "done"

    told: list[Loss | None] = []

    async def fails(*_: object, **__: object) -> None:
        raise StoreError("it is out of reach")

    async with app, app.worker(poll=0.1):
        store: Any = await app._runtime.storage()
        job = await {"loop": loop, "thread": thread}[where].enqueue()
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
            raw.execute("create table mine (attempt integer)")
            async with asyncio.timeout(20):
                while (await job.refresh()).started_at is None:
                    await asyncio.sleep(0.02)
                whole, store.renew = store.renew, fails
                while not told:
                    await asyncio.sleep(0.02)
                store.renew = whole
                assert await job.result() == "done"
            assert told == [Loss.ERROR]
            assert raw.execute("select attempt from mine").fetchall() == [(1,)]


async def test_a_renewal_that_is_refused_since_the_job_has_just_ended_is_no_loss(app, caplog):
    """The store has the end, its answer is on the way, and the lease is renewed meanwhile."""

    @app.task(lease=0.9)
    async def work() -> str:
        return "done"

    async with app:
        store = await app._runtime.storage()
        exchange, renew, refused = store.exchange, store.renew, asyncio.Event()

        async def answered_late(changes, claim=None, started=()):
            answer = await exchange(changes, claim, started)
            if changes:
                await refused.wait()
            return answer

        async def watched(held, started=(), *, lease=None):
            verdicts = await renew(held, started, lease=lease)
            if any(verdict.refusal is not None for verdict in verdicts):
                refused.set()
            return verdicts

        store.exchange, store.renew = answered_late, watched
        async with app.worker(poll=0.1), asyncio.timeout(20):
            job = await work.enqueue()
            await refused.wait()
            assert await job.result() == "done"
    assert "lost its hold" not in caplog.text
    assert "was refused" not in caplog.text
