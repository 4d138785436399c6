"""What the killed processes run: an app whose handlers write down what they do, and the roles of the processes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from typing import Any

from perdure import Backoff, Context, Dead, Perdure, Snooze, Unique
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Claim, Filter, Want
from perdure.worker.worker import Worker

from .databases import Database, database_of
from .recording import Recorder

LEASE = 0.9
HARMLESS = {
    "plain": 4, "threaded": 2, "written": 3, "written_by_thread": 2, "fails_once": 2, "hopeless": 1, "snoozes_once": 1,
    "gives_up": 1, "talks": 1,
}  # fmt: skip
LASTING = {"plain", "threaded", "written", "written_by_thread"}
UNFINISHED = (State.BLOCKED, State.SCHEDULED, State.READY, State.RUNNING)


class Program:
    """An app with its tasks by name."""

    def __init__(self, url: str, history: str, *, lease: float = LEASE) -> None:
        self.record = Recorder(history)
        self.app = Perdure(url, lease=lease, backoff=Backoff.fixed(0.02))
        self.database = database_of(url)
        self.tasks = {task.name: task for task in _declare(self.app, self.record, self.database)}

    def mixture(self, chance: random.Random, count: int) -> list[Any]:
        """Calls of every kind but poison."""
        kinds = {name: share for name, share in HARMLESS.items() if self.possible(name)}
        names = chance.choices(list(kinds), list(kinds.values()), k=count)
        return [self.call(name, chance) for name in names]

    def possible(self, name: str) -> bool:
        """Whether the store has the transaction that this task needs."""
        needs = {"written": self.database.writes_effects, "written_by_thread": self.database.writes_by_thread}
        return needs.get(name, True)

    def call(self, name: str, chance: random.Random) -> Any:
        if name in LASTING:
            return self.tasks[name].call(chance.choice((0.0, 0.0, 0.01, 0.05)))
        return self.tasks[name].call()


def _declare(app: Perdure, record: Recorder, database: Database) -> list[Any]:
    def began(ctx: Context) -> dict[str, int]:
        record("began", ctx.job.id, attempt=ctx.job.attempt)
        return {"attempt": ctx.job.attempt}

    def ended(ctx: Context, **more: Any) -> None:
        record("ended", ctx.job.id, attempt=ctx.job.attempt, **more)

    @app.task
    async def plain(ctx: Context, seconds: float = 0.0) -> dict[str, int]:
        told = began(ctx)
        record("effect", ctx.job.id)
        await asyncio.sleep(seconds)
        ended(ctx)
        return told

    @app.task
    def threaded(ctx: Context, seconds: float = 0.0) -> dict[str, int]:
        told = began(ctx)
        record("effect", ctx.job.id)
        time.sleep(seconds)
        ended(ctx)
        return told

    @app.task(max_attempts=25)
    async def written(ctx: Context, seconds: float = 0.0) -> dict[str, int]:
        told = began(ctx)
        await asyncio.sleep(seconds)
        tx = await ctx.transaction()
        await database.write_effect(tx, str(ctx.job.id), ctx.job.attempt)
        ended(ctx, transactional=True)
        return told

    @app.task(max_attempts=25)
    def written_by_thread(ctx: Context, seconds: float = 0.0) -> dict[str, int]:
        told = began(ctx)
        time.sleep(seconds)
        tx = ctx.sync.transaction()
        tx.sync.execute(database.effect, (str(ctx.job.id), ctx.job.attempt))
        ended(ctx, transactional=True)
        return told

    @app.task
    async def fails_once(ctx: Context) -> dict[str, int]:
        told = began(ctx)
        if ctx.job.failures == 0:
            raise ValueError("the first time")
        return told

    @app.task(max_attempts=2)
    def hopeless(ctx: Context) -> None:
        began(ctx)
        raise ValueError("every time")

    @app.task
    async def snoozes_once(ctx: Context) -> dict[str, int]:
        told = began(ctx)
        if ctx.job.attempt == 1:
            raise Snooze(0.02)
        return told

    @app.task
    async def gives_up(ctx: Context) -> None:
        began(ctx)
        record("died", ctx.job.id)
        raise Dead("nothing can help")

    @app.task
    async def talks(ctx: Context) -> dict[str, int]:
        told = began(ctx)
        for step in range(3):
            await ctx.progress({"step": step})
        await ctx.log("done")
        return told

    @app.task
    def poison(ctx: Context, seconds: float = 0.0, how: str = "exit") -> None:
        began(ctx)
        time.sleep(seconds)
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    return [
        plain, threaded, written, written_by_thread, fails_once, hopeless, snoozes_once, gives_up, talks, poison,
    ]  # fmt: skip


# ---- roles -----------------------------------------------------------------------------------------
def prepare(url: str, history: str, watch: bool = False) -> None:
    """Make the store, the table of effects and, when asked, the triggers that write every move down."""
    app = Program(url, history).app

    async def touch() -> None:
        async with app:
            await app.jobs.count()

    asyncio.run(touch())
    database_of(url).prepare(watch=watch)


def enqueue(url: str, history: str, seed: int, count: int) -> None:
    """Enqueue in every way there is; an id is written down when its verb has returned."""
    program, chance = Program(url, history), random.Random(seed)

    async def one(call: Any) -> None:
        handle = await program.app.enqueue(call)
        program.record("acknowledged", handle.id)

    async def several(calls: list[Any]) -> None:
        for handle in await program.app.enqueue(calls):
            program.record("acknowledged", handle.id)

    async def unique(number: int) -> None:
        key = f"key-{number}"
        task = program.tasks["plain"].using(unique=Unique(key, scope="any"))
        handle = await task.enqueue(0.0)
        program.record("acknowledged", handle.id, key=key, scope="any", duplicate=handle.duplicate)

    async def main() -> None:
        async with program.app:
            stored = 0
            while stored < count:
                calls = program.mixture(chance, chance.randint(1, 8))
                match chance.randint(0, 3):
                    case 0:
                        await one(calls[0])
                    case 1:
                        await several(calls)
                    case 2:
                        await asyncio.gather(*(one(call) for call in calls))
                    case _:
                        await unique(chance.randint(0, 20))
                stored += len(calls)

    asyncio.run(main())


def put(url: str, history: str, calls: list[list[Any]], lease: float = LEASE) -> None:
    """Enqueue named tasks with these arguments and options: [name, arguments, options]."""
    program = Program(url, history, lease=lease)

    async def main() -> None:
        async with program.app:
            for name, arguments, options in calls:
                if not program.possible(name):
                    continue
                handle = await program.tasks[name].using(**options).enqueue(**arguments)
                program.record("acknowledged", handle.id, task=name)

    asyncio.run(main())


def work(url: str, history: str, name: str, concurrency: int = 4) -> None:
    """A worker, until somebody ends it."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # told to stop before it listens: nothing is under way yet
    program = Program(url, history)

    async def main() -> None:
        async with program.app:
            await Worker(program.app, name=name, concurrency=concurrency, poll=0.1, grace=5).run()

    asyncio.run(main())


def drain(urls: list[str], histories: list[str], concurrency: int = 4) -> None:
    """Workers on these files until nothing is left to do on any of them."""

    async def one(program: Program) -> None:
        async with program.app as app, app.worker(concurrency=concurrency, poll=0.1):
            await app.queues.resume("default")  # whoever paused it may be dead
            store = await app._runtime.storage()
            while await store.count(Filter(states=UNFINISHED)) or await _held(store):
                await asyncio.sleep(0.1)  # dozens look at once, and their workers have leases to keep

    async def main() -> None:
        programs = [Program(*each) for each in zip(urls, histories, strict=True)]
        await asyncio.gather(*(one(program) for program in programs))

    asyncio.run(main())


def share(url: str, history: str, name: str, jobs: int, total: int) -> None:
    """Enqueue some jobs, and claim and finish whatever there is, together with many others, until all are done."""
    program = Program(url, history, lease=60)
    mine: list[str] = []

    async def put_all() -> None:
        for start in range(0, jobs, 5):
            for handle in await program.app.enqueue([program.tasks["plain"].call()] * min(5, jobs - start)):
                program.record("acknowledged", handle.id)

    async def claim_all(store: Any) -> None:
        ended: list[Any] = []
        while ended or await store.count(Filter(states=(State.SUCCEEDED,))) < total:
            answer = await store.exchange(ended, Claim(name, new_stamp(), (Want(7),)))
            assert all(verdict.accepted for verdict in answer.verdicts)
            for record in answer.claimed:
                program.record("began", record.id, attempt=record.attempt)
                mine.append(record.id)
            ended = [decide(record, Succeeded(json.dumps({"attempt": record.attempt}))) for record in answer.claimed]
            if not ended:
                await asyncio.sleep(0.05)

    async def main() -> None:
        async with program.app:
            await asyncio.gather(put_all(), claim_all(await program.app._runtime.storage()))

    asyncio.run(main())
    print(json.dumps(mine))


async def _held(store: Any) -> bool:
    """Jobs that were cancelled while they ran keep their hold until their lease is over."""
    records, _ = await store.find(Filter(states=(State.CANCELLED,)), 500, None)
    return any(record.stamp is not None for record in records)


ROLES = {"prepare": prepare, "enqueue": enqueue, "put": put, "work": work, "drain": drain, "share": share}
