"""A small life of a few jobs, call by call, in a process that kills itself right before or right after its n-th call
to the store. The script is the same every time; only where it ends differs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

from perdure import Unique
from perdure.core.ids import new_stamp
from perdure.core.lifecycle import Died, Failed, HandedBack, Report, Snoozed, Succeeded, decide
from perdure.core.record import Fault, Record
from perdure.storage.contract import Claim, Note, Started, Want

from .program import Program

COUNTED = frozenset({
    "enqueue", "exchange", "renew", "recover_claim", "note", "promote", "lapsed", "expired", "prune", "get", "find", "count",
    "pause", "configure", "heartbeat", "remove_worker", "begin_transaction", "execute", "complete", "rollback",
})  # fmt: skip


class Countdown:
    """Counts calls, and ends the process at the one it was told, `before` or after it took hold. 0: never."""

    def __init__(self, last: int, *, before: bool) -> None:
        self.calls = 0
        self._last = last
        self._before = before

    async def around(self, call: Any) -> Any:
        self.calls += 1
        last = self.calls == self._last
        if last and self._before:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return await call
        finally:  # who asked may have given it up
            if last:
                os.kill(os.getpid(), signal.SIGKILL)


class Fragile:
    """A store, or a transaction of one, whose calls are counted."""

    def __init__(self, inner: Any, countdown: Countdown) -> None:
        self._inner = inner
        self._countdown = countdown

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if name not in COUNTED:
            return real

        async def call(*arguments: Any, **options: Any) -> Any:
            answer = await self._countdown.around(real(*arguments, **options))
            return Fragile(answer, self._countdown) if name == "begin_transaction" else answer

        return call

    async def apply(self, changes: Any) -> Any:
        return list((await self.exchange(changes)).verdicts)

    async def claim(self, claim: Any) -> Any:
        return list((await self.exchange((), claim)).claimed)


def fragile(program: Program, countdown: Countdown) -> None:
    """Let the program's app open a fragile store."""
    from perdure.storage.urls import opener

    settings = program.app.settings
    real = opener(program.app.url, clock=None, durability=settings.durability, migrate=True)
    program.app._runtime.loops._open_store = lambda: Fragile(real(), countdown)


def script(url: str, history: str, last: int, before: bool = True) -> None:
    program = Program(url, history)
    countdown = Countdown(last, before=before)
    fragile(program, countdown)
    asyncio.run(_life(program))
    print(json.dumps({"calls": countdown.calls}))


async def _life(program: Program) -> None:
    async with program.app as app:
        store = await app._runtime.storage()
        record, tasks = program.record, program.tasks
        first = await tasks["plain"].enqueue(0.0)
        record("acknowledged", first.id)
        names = ["plain", "plain", "plain", "written", "plain", "plain", "plain", "talks"]
        names = [name if program.possible(name) else "plain" for name in names]
        for handle in await app.enqueue([tasks[name].call() for name in names]):
            record("acknowledged", handle.id)
        for _ in range(2):
            unique = await tasks["plain"].using(unique=Unique("one", scope="any")).enqueue(0.0)
            record("acknowledged", unique.id, key="one", scope="any", duplicate=unique.duplicate)
        active = await tasks["plain"].using(unique=Unique("live"), priority=-1).enqueue(0.0)
        record("acknowledged", active.id)

        jobs = await store.claim(Claim("script", new_stamp(), (Want(8),)))
        claimed = [(job.task, job.rank, job.id) for job in jobs]
        assert [task for task, _, _ in claimed] == ["plain", *names[:7]], claimed
        for job in jobs:
            record("began", job.id, attempt=job.attempt)
        await store.exchange((), None, [Started(jobs[0].hold, await store.now())])
        await store.note([Note(jobs[0].hold, '{"step":1}', ("a line",))])
        await store.renew([job.hold for job in jobs], [Started(jobs[1].hold, await store.now())])

        await _says(store, jobs[0], _succeeded(jobs[0]))
        await _says(store, jobs[0], _succeeded(jobs[0]))  # as after a broken connection
        more = await store.exchange(
            [decide(jobs[1], Failed(_fault(jobs[1]))), decide(jobs[2], Snoozed(delay=1000))],
            Claim("script", new_stamp(), (Want(1),)),
        )
        for job in more.claimed:
            record("began", job.id, attempt=job.attempt)
        await _says(store, jobs[3], HandedBack())
        await _writes(store, jobs[4], program)
        await _cancels(app, record, jobs[5])
        await _cancels(app, record, active)
        record("died", jobs[6].id)
        await _says(store, jobs[6], Died("the script says so"))
        record("retried", jobs[6].id)
        assert await app.dead.retry(jobs[6].id) == 1
        record("deleted", jobs[0].id)
        assert await app.jobs.delete(jobs[0].id) == 1
        await app.queues.pause("default")
        await app.queues.resume("default")
        await store.promote(10)
        await store.expired(10)
        await store.prune(10)


async def _says(store: Any, job: Record, said: Report) -> None:
    (verdict,) = await store.apply([decide(job, said)])
    assert verdict.accepted, (job.id, verdict)


async def _writes(store: Any, job: Record, program: Program) -> None:
    """The effect and the completion in one transaction."""
    if not program.database.writes_effects:
        await _says(store, job, _succeeded(job))
        return
    tx = await store.begin_transaction(1_000_000)
    await program.database.write_effect(tx, job.id, job.attempt)
    program.record("ended", job.id, attempt=job.attempt, transactional=True)
    verdict = await tx.complete(decide(job, _succeeded(job)))
    assert verdict.accepted


async def _cancels(app: Any, record: Any, job: Any) -> None:
    assert await app.jobs.cancel(job.id) == 1
    record("cancelled", job.id)


def _succeeded(job: Record) -> Succeeded:
    return Succeeded(json.dumps({"attempt": job.attempt}))


def _fault(job: Record) -> Fault:
    return Fault(job.attempt, "script", 0, 1, "ValueError", "it broke")


def fragile_work(url: str, history: str, last: int, before: bool) -> None:
    """A worker whose store ends the process at the n-th call."""
    program = Program(url, history)
    fragile(program, Countdown(last, before=before))

    async def main() -> None:
        async with program.app as app:
            await app.worker(concurrency=3, poll=0.05, name="fragile").run()

    asyncio.run(main())


ROLES = {"script": script, "fragile_work": fragile_work}
