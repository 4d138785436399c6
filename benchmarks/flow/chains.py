"""Steps a second: a chain that decides as it goes, a hundred of them at once, and a hundred that were declared before."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from perdure import Continue, Perdure, chain

from .wrong import Wrong

CHAINS = 100
WITHIN = 600.0


class Walked:
    """The steps that were made, by chain and number."""

    def __init__(self) -> None:
        self.steps: Counter[tuple[int, int]] = Counter()
        self.wanted = 0
        self.all = asyncio.Event()

    def begin(self, wanted: int) -> None:
        self.steps.clear()
        self.wanted = wanted
        self.all.clear()

    def made(self, chain: int, left: int) -> None:
        self.steps[chain, left] += 1
        if len(self.steps) == self.wanted:
            self.all.set()


async def walk_chains(url: str, size: int) -> dict[str, float]:
    """One chain of `size` steps; then a hundred with a tenth of it each, by Continue and declared. Every step once."""
    app = Perdure(url)
    walked = Walked()
    length = max(2, size // 10)

    @app.task(name="walk")
    async def walk(number: int, left: int) -> int:
        walked.made(number, left)
        return Continue(walk.call(number, left - 1)) if left else number

    @app.task(name="step")
    async def step(number: int, left: int) -> int:
        walked.made(number, left)
        return number

    async with app, app.worker(concurrency=CHAINS):
        one = await _steps_a_second(app, [walk.call(0, size - 1)], size, walked)
        many = await _steps_a_second(app, [walk.call(each, length - 1) for each in range(CHAINS)], length, walked)
        declared = [chain(*(step.call(each, left) for left in reversed(range(length)))) for each in range(CHAINS)]
        told = await _steps_a_second(app, declared, length, walked)
    return {"one": one, "many": many, "declared": told}


async def _steps_a_second(app: Perdure, flows: Sequence[Any], length: int, walked: Walked) -> float:
    """All are on record before the first step is made; the time ends with the last step's begin."""
    total = len(flows) * length
    walked.begin(total)
    await app.queues.pause("default")
    handles = [await app.enqueue(flow) for flow in flows]
    began = time.perf_counter()
    await app.queues.resume("default")
    async with asyncio.timeout(WITHIN):
        await walked.all.wait()
        took = time.perf_counter() - began
        results = await asyncio.gather(*(handle.result() for handle in handles))
    if results != list(range(len(flows))):
        raise Wrong("a chain ended with the result of another one")
    if len(walked.steps) != total or set(walked.steps.values()) != {1}:
        raise Wrong(f"{total} steps, {len(walked.steps)} made, {walked.steps.total()} times")
    return total / took
