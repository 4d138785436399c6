"""The app of a kill campaign. Its handlers write down what they do, and its producer enqueues work of every kind: single
jobs, chains, groups, graphs, followers, unique keys, limits, and effects in the transaction of the completion.

`perdure worker tests.system.kills.worker_app:app` runs the handlers; the campaign enqueues and judges.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from perdure import Backoff, Context, Continue, Dead, JobHandle, Limit, Perdure, Unique, graph, group

from ..crashes.databases import database_of
from ..crashes.recording import Recorder

LEASE = 3.0
LONGER_LEASE = 9.0  # a transaction may take a sixth of its job's lease
AT_MOST = 2  # limited jobs at once
DURATIONS = (0.0, 0.0, 0.02, 0.1, 0.3)
NEVER_FAIL = {"plain", "threaded", "written", "number", "total", "sum_of_parents", "walk", "limited", "canary"}


class Program:
    """The app with its tasks by name, and the bundles of work that the producer chooses from."""

    def __init__(self, url: str, folder: Path) -> None:
        self.record = Recorder(str(folder / "history.jsonl"))
        self.app = Perdure(url, lease=LEASE, backoff=Backoff.fixed(0.05))
        self.database = database_of(url)
        self.expected: dict[str, Any] = {}  # the result of each job that ends a flow
        self.enqueued = 0
        self.tasks = {task.name: task for task in _declare(self)}
        self.bundles: list[Callable[[random.Random], Awaitable[None]]] = [
            self._list, self._fan, self._fan, self._fan, self._diamond, self._chain, self._failing, self._unique,
            self._limited, *([self._written, self._written] if self.database.writes_effects else []),
        ]  # fmt: skip

    async def enqueue_bundle(self, chance: random.Random) -> None:
        await chance.choice(self.bundles)(chance)

    async def enqueue_canaries(self, count: int) -> None:
        self.acknowledge(await self.app.enqueue([self.tasks["canary"].call() for _ in range(count)]))

    def acknowledge(self, handles: Sequence[JobHandle[Any]], **more: Any) -> None:
        for handle in handles:
            self.record("acknowledged", handle.id, **more)
        self.enqueued += len(handles)

    # -- bundles -------------------------------------------------------------------------------------
    async def _list(self, chance: random.Random) -> None:
        names = chance.choices(("plain", "threaded"), k=chance.randint(1, 8))
        self.acknowledge(await self.app.enqueue([self.tasks[name].call(chance.choice(DURATIONS)) for name in names]))

    async def _fan(self, chance: random.Random) -> None:
        """A job, a group that waits for it, and a job that gets all results of the group."""
        size = chance.randint(2, 30)
        root = await self.tasks["number"].enqueue(1)
        self.acknowledge([root])
        number = self.tasks["number"].using(after=[root])
        parts = group(*(number.call(value) for value in range(size)))
        self._ends(await self.app.enqueue(parts.then(self.tasks["total"])), sum(range(size)))
        self.enqueued += size

    async def _diamond(self, chance: random.Random) -> None:
        g, more = graph(), chance.randint(0, 5)
        top = g.add(self.tasks["number"].call(1))
        middle = [g.add(self.tasks["sum_of_parents"].call(more), after=[top]) for _ in range(3)]
        g.add(self.tasks["sum_of_parents"].call(0), after=[top, *middle])
        handles = await self.app.enqueue(g)
        self.acknowledge(handles[:-1])
        self._ends(handles[-1], 1 + 3 * (1 + more))

    async def _chain(self, chance: random.Random) -> None:
        """A job that continues with itself, and followers of its end: by `then` and by `after`."""
        steps = chance.randint(1, 4)
        self._ends(await self.app.enqueue(self.tasks["walk"].call(steps).then(self.tasks["number"])), steps)
        first = await self.tasks["walk"].enqueue(steps)
        self.acknowledge([first])
        self._ends(await self.tasks["sum_of_parents"].using(after=[first]).enqueue(10), 10 + steps)
        self.enqueued += 2 * steps + 1

    async def _failing(self, chance: random.Random) -> None:
        """A job that fails once, one that dies, and a follower that runs in spite of that."""
        fails = await self.tasks["fails_once"].enqueue()
        dies = await self.tasks["gives_up"].enqueue()
        self.acknowledge([fails, dies])
        follower = self.tasks["follows_any_end"].using(after=[fails, dies], run_when="finished")
        self._ends(await follower.enqueue(), "ran")

    async def _unique(self, chance: random.Random) -> None:
        for scope in ("active", "any"):
            key = f"{scope}-{chance.randint(0, 30)}"
            handle = await self.tasks["plain"].using(unique=Unique(key, scope=scope)).enqueue(chance.choice(DURATIONS))
            self.acknowledge([handle], key=key, scope=scope, duplicate=handle.duplicate)

    async def _limited(self, chance: random.Random) -> None:
        calls = [self.tasks["limited"].call(chance.choice((0.0, 0.02))) for _ in range(chance.randint(1, 4))]
        self.acknowledge(await self.app.enqueue(calls))

    async def _written(self, chance: random.Random) -> None:
        """An effect in the transaction of the completion, and a follower that this completion releases."""
        first = await self.tasks["written"].enqueue(chance.choice(DURATIONS))
        self.acknowledge([first])
        self.acknowledge([await self.tasks["written"].using(after=[first]).enqueue(0.0)])

    def _ends(self, handle: JobHandle[Any], result: Any) -> None:
        self.acknowledge([handle])
        self.expected[str(handle.id)] = result


def _declare(program: Program) -> list[Any]:
    app, record = program.app, program.record

    def began(ctx: Context, **more: Any) -> dict[str, int]:
        record("began", ctx.job.id, attempt=ctx.job.attempt, worker=ctx.worker, **more)
        return {"attempt": ctx.job.attempt}

    def ended(ctx: Context, **more: Any) -> None:
        record("ended", ctx.job.id, attempt=ctx.job.attempt, **more)

    async def noted(ctx: Context) -> None:
        began(ctx)
        await asyncio.sleep(0.02 * (ctx.job.id.int % 2))
        ended(ctx)

    @app.task
    async def plain(ctx: Context, seconds: float) -> dict[str, int]:
        result = began(ctx)
        await asyncio.sleep(seconds)
        ended(ctx)
        return result

    @app.task
    def threaded(ctx: Context, seconds: float) -> dict[str, int]:
        result = began(ctx)
        time.sleep(seconds)
        ended(ctx)
        return result

    @app.task(lease=LONGER_LEASE)
    async def written(ctx: Context, seconds: float) -> dict[str, int]:
        result = began(ctx)
        await asyncio.sleep(seconds)
        await program.database.write_effect(await ctx.transaction(), str(ctx.job.id), ctx.job.attempt)
        ended(ctx, transactional=True)
        return result

    @app.task(limit=Limit(max_running=AT_MOST))
    async def limited(ctx: Context, seconds: float) -> dict[str, int]:
        result = began(ctx, limit="limited", at_most=AT_MOST)
        await asyncio.sleep(seconds)
        ended(ctx)
        return result

    @app.task
    async def number(ctx: Context, value: int) -> int:
        await noted(ctx)
        return value

    @app.task
    async def total(ctx: Context, numbers: list[int]) -> int:
        await noted(ctx)
        return sum(numbers)

    @app.task
    async def sum_of_parents(ctx: Context, more: int) -> int:
        await noted(ctx)
        return sum(ctx.parents) + more

    @app.task
    async def walk(ctx: Context, steps: int, seen: int = 0) -> int:
        await noted(ctx)
        return Continue(walk.call(steps - 1, seen + 1)) if steps else seen

    @app.task
    async def fails_once(ctx: Context) -> dict[str, int]:
        result = began(ctx)
        if ctx.job.failures == 0:
            raise ValueError("the first time")
        ended(ctx)
        return result

    @app.task
    async def gives_up(ctx: Context) -> None:
        began(ctx)
        record("died", ctx.job.id)
        raise Dead("nothing can help")

    @app.task
    async def follows_any_end(ctx: Context) -> str:
        await noted(ctx)
        return "ran"

    @app.task
    async def canary(ctx: Context) -> None:
        began(ctx)
        await asyncio.sleep(0.2)
        ended(ctx)

    return [
        plain, threaded, written, limited, number, total, sum_of_parents, walk, fails_once, gives_up, follows_any_end,
        canary,
    ]  # fmt: skip
