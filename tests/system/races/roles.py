"""What racing processes do. Those that must meet wait for a file, the gate, to appear."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perdure import Context, Unique
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Died, Retried, Succeeded, decide
from perdure.core.record import Record
from perdure.storage.contract import Claim, Filter, Want
from perdure.upkeep.reap import reap

from ..crashes import program
from ..crashes.databases import database_of
from ..crashes.program import Program

SCOPES = ("waiting", "active", "any", "window")


async def _open_gate(gate: str) -> None:
    print("at the gate", flush=True)
    while not Path(gate).exists():
        await asyncio.sleep(0.001)


def keys(url: str, history: str, gate: str, seed: int, count: int) -> None:
    """Enqueue with the same keys as everybody else, of all scopes, in an order of one's own."""
    program = Program(url, history)
    wanted = [(scope, f"{scope}-{number}") for scope in SCOPES for number in range(count)]
    random.Random(seed).shuffle(wanted)

    async def one(scope: str, key: str) -> None:
        window = 3600 if scope == "window" else None
        task = program.tasks["plain"].using(unique=Unique(key, scope=scope, window=window))
        handle = await task.enqueue(0.0)
        program.record("acknowledged", handle.id, key=key, scope=scope, duplicate=handle.duplicate)

    async def main() -> None:
        async with program.app:
            await program.app._runtime.storage()
            await _open_gate(gate)
            for start in range(0, len(wanted), 5):
                await asyncio.gather(*(one(*each) for each in wanted[start : start + 5]))

    asyncio.run(main())


def claim_some(url: str, history: str, count: int, lease: float, dead: bool = False) -> None:
    """Enqueue and claim jobs, and print their holds; `dead`: they die at once."""
    program = Program(url, history, lease=lease)

    async def main() -> list[Record]:
        async with program.app as app:
            for handle in await app.enqueue([program.tasks["plain"].call() for _ in range(count)]):
                program.record("acknowledged", handle.id)
            store = await app._runtime.storage()
            records = await store.claim(Claim("first", new_stamp(), (Want(count),)))
            for record in records:
                program.record("began", record.id, attempt=record.attempt)
                if dead:
                    program.record("died", record.id)
            if dead:
                await store.apply([decide(record, Died("on purpose")) for record in records])
            return list(records)

    records = asyncio.run(main())
    print(json.dumps([[record.id, record.attempt, record.stamp] for record in records]))


def say(url: str, history: str, gate: str, word: str, holds: list[list[Any]]) -> None:
    """Say one word about each of these jobs, one after the other, and print for each whether it took hold."""
    program = Program(url, history)

    async def main() -> list[int]:
        async with program.app as app:
            store = await app._runtime.storage()
            records = {record.id: record for record in await store.get([hold[0] for hold in holds]) if record}
            await _open_gate(gate)
            return [await _say(app, store, word, records[hold[0]]) for hold in holds]

    print(json.dumps(asyncio.run(main())))


async def _say(app: Any, store: Any, word: str, record: Record) -> int:
    match word:
        case "finish":
            done = Succeeded(json.dumps({"attempt": record.attempt}))
            return int((await store.apply([decide(record, done)]))[0].accepted)
        case "cancel":
            return await app.jobs.cancel(record.id)
        case "stale cancel":
            return int((await store.apply([decide(record, Cancelled())]))[0].accepted)
        case "reap":
            return await reap(store, await store.lapsed(3, 60_000_000))
        case "retry":
            return await app.dead.retry(record.id)
        case "stale retry":
            return int((await store.apply([decide(record, Retried())]))[0].accepted)
    raise ValueError(word)


def claim_on(url: str, history: str, name: str) -> None:
    """Claim one job after the other, and never finish."""
    program = Program(url, history, lease=60)

    async def main() -> None:
        async with program.app as app:
            store = await app._runtime.storage()
            while True:
                for record in await store.claim(Claim(name, new_stamp(), (Want(1),))):
                    program.record("began", record.id, attempt=record.attempt)

    asyncio.run(main())


def pause(url: str, history: str, after: int) -> None:
    """Pause in the middle of the claiming, and print how many run then and a while later."""
    program = Program(url, history, lease=60)
    running = Filter(states=(State.RUNNING,))

    async def main() -> list[int]:
        async with program.app as app:
            store = await app._runtime.storage()
            while await store.count(running) < after:
                await asyncio.sleep(0.002)
            await app.queues.pause("default")
            seen = [await store.count(running)]
            for _ in range(20):
                await asyncio.sleep(0.01)
                seen.append(await store.count(running))
            return [*seen, await store.count(Filter(states=(State.READY,)))]

    print(json.dumps(asyncio.run(main())))


def caller(url: str, history: str, seed: int, count: int) -> None:
    """Transactions of a program of its own, with a job in each; some are rolled back."""
    program, chance = Program(url, history), random.Random(seed)
    theirs = database_of(url).caller()

    async def transaction() -> None:
        theirs.begin()
        calls = [program.tasks["plain"].call() for _ in range(chance.randint(1, 3))]
        handles = await program.app.enqueue(calls, connection=theirs.connection)
        for handle in handles:
            theirs.order(str(handle.id))
        keep = chance.random() > 0.3
        theirs.end(keep=keep)
        for handle in handles:
            program.record("acknowledged" if keep else "rolled_back", handle.id)

    async def main() -> None:
        async with program.app:
            for _ in range(count):
                await transaction()

    asyncio.run(main())
    theirs.close()


def stubborn_work(url: str, history: str, name: str, gate: str) -> None:
    """A worker whose handlers wait for the gate from their second attempt on, and note why they were told to stop."""
    program = Program(url, history)
    app, record = program.app, program.record

    def told(ctx: Context) -> None:
        reason = ctx.lost.reason
        record("lost", ctx.job.id, attempt=ctx.job.attempt, reason=None if reason is None else str(reason))

    @app.task(max_attempts=25)
    async def waits(ctx: Context) -> dict[str, int]:
        record("began", ctx.job.id, attempt=ctx.job.attempt)
        try:
            while ctx.job.attempt == 1 or not Path(gate).exists():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            told(ctx)
            raise
        return {"attempt": ctx.job.attempt}

    @app.task(max_attempts=25)
    def waits_in_a_thread(ctx: Context) -> dict[str, int]:
        record("began", ctx.job.id, attempt=ctx.job.attempt)
        while not ctx.lost.is_set() and (ctx.job.attempt == 1 or not Path(gate).exists()):
            time.sleep(0.01)
        told(ctx)
        return {"attempt": ctx.job.attempt}

    @app.task(max_attempts=25)
    def blind(ctx: Context) -> dict[str, int]:
        """Does not look: its word goes out as soon as it is awake, whatever happened meanwhile."""
        record("began", ctx.job.id, attempt=ctx.job.attempt)
        until = time.monotonic() + 2.0
        while ctx.job.attempt == 1 and time.monotonic() < until:
            time.sleep(0.001)
        while ctx.job.attempt > 1 and not Path(gate).exists():
            time.sleep(0.01)
        if program.database.writes_by_thread:
            tx = ctx.sync.transaction()
            tx.sync.execute(program.database.effect, (str(ctx.job.id), ctx.job.attempt))
        return {"attempt": ctx.job.attempt}

    async def main() -> None:
        async with app:
            if name == "first":
                for task in (waits, waits_in_a_thread, blind):
                    handle = await task.enqueue()
                    record("acknowledged", handle.id, task=task.name)
            await app.worker(name=name, concurrency=6, poll=0.1, grace=5).run()

    asyncio.run(main())


def _roles(functions: Iterable[Any]) -> dict[str, Any]:
    return {function.__name__: function for function in functions}


ROLES = {**program.ROLES, **_roles([keys, claim_some, say, claim_on, pause, caller, stubborn_work])}
