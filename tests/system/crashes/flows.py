"""A program of flows whose handlers write down what they do: what is fanned out and in, chained, dies and is followed.

`perdure worker tests.system.crashes.flow_worker:app` runs it; the test enqueues and judges.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure import Backoff, Context, Continue, Dead, JobHandle, Perdure, graph, group

from .recording import Recorder

LEASE = 1.5


class Flows:
    """An app with its tasks. `folder` holds the history and two gates: files for which handlers look."""

    def __init__(self, url: str, folder: Path) -> None:
        self.record = Recorder(str(folder / "history.jsonl"))
        self.open = folder / "open"  # the root ends when it is there
        self.mercy = folder / "mercy"  # the mortal live when it is there
        self.app = Perdure(url, lease=LEASE, backoff=Backoff.fixed(0.02))
        self.tasks = {task.name: task for task in _declare(self)}
        self.expected: dict[str, Any] = {}  # the result of each job that ends a flow

    async def enqueue(self, size: int, chance: random.Random) -> None:
        """A fan of `size` out of one job and into another, and of everything else a little."""
        await self._fan(size)
        for number in range(max(3, size // 200)):
            await self._diamond(number)
            await self._chain(chance.randint(1, 6))
        for _ in range(3):
            await self._mortal()

    async def _fan(self, size: int) -> None:
        root = await self.app.enqueue(self.tasks["root"].call())
        self._acknowledged([root])
        part = self.tasks["part"].using(after=[root])
        parts = group(*(part.call(number) for number in range(size)))
        self._ends(await self.app.enqueue(parts.then(self.tasks["total"])), sum(range(size)))

    async def _diamond(self, number: int) -> None:
        g, part, total = graph(), self.tasks["part"], self.tasks["sum_of_parents"]
        top = g.add(part.call(1))
        middle = [g.add(total.call(number), after=[top]) for _ in range(3)]
        g.add(total.call(0), after=[top, *middle])
        handles = await self.app.enqueue(g)
        self._acknowledged(handles[:-1])
        self._ends(handles[-1], 1 + 3 * (1 + number))

    async def _chain(self, steps: int) -> None:
        """A job that goes on with itself, and followers of its end: by then, and by after=."""
        self._ends(await self.app.enqueue(self.tasks["walk"].call(steps).then(self.tasks["part"])), steps)
        first = await self.app.enqueue(self.tasks["walk"].call(steps))
        self._acknowledged([first])
        self._ends(await self.tasks["sum_of_parents"].using(after=[first]).enqueue(10), 10 + steps)

    async def _mortal(self) -> None:
        """A job that dies. One follower does not mind; the other one waits for its second life."""
        mortal = await self.app.enqueue(self.tasks["mortal"].call())
        self._acknowledged([mortal])
        follower = self.tasks["follows"].using(after=[mortal])
        self._ends(await follower.using(run_when="finished").enqueue("at once"), "at once")
        self._ends(await follower.enqueue("later"), "later")

    def _ends(self, handle: JobHandle[Any], result: Any) -> None:
        self._acknowledged([handle])
        self.expected[str(handle.id)] = result

    def _acknowledged(self, handles: Sequence[JobHandle[Any]]) -> None:
        for handle in handles:
            self.record("acknowledged", handle.id)

    async def retry_the_dead(self) -> int:
        """Give the mortal another life, once all are dead."""
        page = await self.app.dead.find(task="mortal")
        for job in page.items:
            self.record("retried", job.id)
        return await self.app.dead.retry(*(job.id for job in page.items))


def _declare(flows: Flows) -> list[Any]:
    app, record = flows.app, flows.record

    async def until_there(gate: Path) -> None:
        while not gate.exists():
            await asyncio.sleep(0.02)

    async def noted(ctx: Context, work: Any = None) -> None:
        record("began", ctx.job.id, attempt=ctx.job.attempt)
        await (asyncio.sleep(0.02 * (ctx.job.id.int % 2)) if work is None else work)
        record("ended", ctx.job.id, attempt=ctx.job.attempt)

    @app.task
    async def root(ctx: Context) -> int:
        await noted(ctx, until_there(flows.open))
        return 1

    @app.task
    async def part(ctx: Context, number: int) -> int:
        await noted(ctx)
        return number

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
    async def mortal(ctx: Context) -> None:
        if flows.mercy.exists():
            return await noted(ctx)
        record("began", ctx.job.id, attempt=ctx.job.attempt)
        record("died", ctx.job.id)
        raise Dead("nothing can help")

    @app.task
    async def follows(ctx: Context, word: str) -> str:
        await noted(ctx)
        return word

    return [root, part, total, sum_of_parents, walk, mortal, follows]


URL, FOLDER = "PERDURE_FLOWS_URL", "PERDURE_FLOWS_FOLDER"


def from_environment() -> Flows:
    return Flows(os.environ[URL], Path(os.environ[FOLDER]))
