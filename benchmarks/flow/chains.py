"""Steps a second: a chain that decides as it goes, a hundred of them at once, and a hundred that were declared before."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast import Context, Continue, Holdfast, chain

from .wrong import Wrong

CHAINS = 100
WITHIN = 600.0


async def walk_chains(url: str, size: int) -> dict[str, float]:
    """One chain of `size` steps; then a hundred with a tenth of it each, by Continue and declared. Every step once."""
    app = Holdfast(url)
    walked: Counter[tuple[int, int]] = Counter()
    length = max(2, size // 10)

    @app.task(name="walk")
    async def walk(number: int, left: int) -> int:
        walked[number, left] += 1
        return Continue(walk.call(number, left - 1)) if left else number

    @app.task(name="step")
    async def step(ctx: Context, number: int, left: int) -> int:
        walked[number, left] += 1
        return number

    async with app, app.worker(concurrency=CHAINS):
        one = await _steps_a_second(app, [walk.call(0, size - 1)], size, walked)
        many = await _steps_a_second(app, [walk.call(each, length - 1) for each in range(CHAINS)], length, walked)
        declared = [chain(*(step.call(each, left) for left in reversed(range(length)))) for each in range(CHAINS)]
        told = await _steps_a_second(app, declared, length, walked)
    return {"one": one, "many": many, "declared": told}


async def _steps_a_second(app: Holdfast, flows: Sequence[Any], length: int, walked: Counter[tuple[int, int]]) -> float:
    """All are on record before the first step is made."""
    walked.clear()
    await app.queues.pause("default")
    handles = [await app.enqueue(flow) for flow in flows]
    began = time.perf_counter()
    await app.queues.resume("default")
    async with asyncio.timeout(WITHIN):
        results = await asyncio.gather(*(handle.result() for handle in handles))
    took = time.perf_counter() - began
    if results != list(range(len(flows))):
        raise Wrong("a chain ended with the result of another one")
    if len(walked) != len(flows) * length or set(walked.values()) != {1}:
        raise Wrong(f"{len(flows) * length} steps, {len(walked)} made, {walked.total()} times")
    return len(flows) * length / took
