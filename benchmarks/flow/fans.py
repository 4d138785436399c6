"""A job that many wait for, and one that waits for all of those: how long until they are on record, have run, are joined."""

import asyncio
import time
from collections import Counter
from statistics import median

from perdure import Perdure, State, group

from .wrong import Wrong

READS = 20
WITHIN = 600.0


async def fan_out_and_in(url: str, size: int) -> dict[str, float]:
    """One job, then `size` at once, then one that gets their results. Each child runs once, and the last job after all."""
    app = Perdure(url)
    ran: Counter[int] = Counter()
    all_ran = asyncio.Event()

    @app.task(name="root")
    async def root() -> None: ...

    @app.task(name="part")
    async def part(number: int) -> int:
        ran[number] += 1
        if len(ran) == size:
            all_ran.set()
        return number

    @app.task(name="total")
    async def total(numbers: list[int]) -> tuple[int, int]:
        return sum(numbers), len(ran)

    async with app, app.worker(concurrency=50):
        await app.queues.pause("default")
        enqueued = time.perf_counter()
        child = part.using(after=[await root.enqueue()])
        join = await app.enqueue(group(*(child.call(number) for number in range(size))).then(total))
        resumed = time.perf_counter()
        await app.queues.resume("default")
        async with asyncio.timeout(WITHIN):
            await all_ran.wait()
            children = time.perf_counter()
            result = await join.result()
        joined = time.perf_counter()
        if tuple(result) != (sum(range(size)), size) or set(ran.values()) != {1}:
            raise Wrong(f"{size} children ran {ran.total()} times, and the last job got {result}")
        progress = await _progress(app, (await join.refresh()).chain_id, size + 1)
    return {
        "enqueue": (resumed - enqueued) * 1000,
        "children": (children - resumed) * 1000,
        "join": (joined - resumed) * 1000,
        "progress": progress * 1_000_000,
    }


async def _progress(app: Perdure, chain_id: object, done: int) -> float:
    """Seconds to ask how many of a flow are done."""
    took = []
    for _ in range(READS):
        began = time.perf_counter()
        counted = await app.jobs.count(chain_id=chain_id, state=State.SUCCEEDED)
        took.append(time.perf_counter() - began)
        if counted != done:
            raise Wrong(f"{done} jobs of the flow are done, {counted} were counted")
    return median(took)
