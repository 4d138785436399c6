"""Schedules that all fire in the same second: how long until every one's job is on record, and until all have run."""

import asyncio
import math
import time
from collections import Counter
from datetime import UTC, datetime

from perdure import Perdure
from perdure.schedules.declaration import rule_of, schedule_of
from perdure.schedules.schedule import start_from, write
from perdure.storage.contract import Filter

from .wrong import Wrong

AHEAD = 2.0  # seconds for the workers to have looked around


async def fire_at_once(url: str, size: int) -> dict[str, float]:
    """Two workers and so many schedules with one tick in common; exactly one job for each, none before the tick."""
    app = Perdure(url)
    ran: Counter[int] = Counter()
    all_ran = asyncio.Event()

    @app.task(name="note")
    async def note(number: int) -> None:
        ran[number] += 1
        if len(ran) == size:
            all_ran.set()

    async with app:
        tick = await _put(app, [note.call(number) for number in range(size)])
        async with app.worker(), app.worker():
            await asyncio.sleep(max(0.0, tick - time.time()))
            recorded = await _until_recorded(app, size)
            await asyncio.wait_for(all_ran.wait(), 600)
            done = time.time()
        await _check(app, ran, size, tick)
    return {"on_record": (recorded - tick) * 1000, "all_run": (done - tick) * 1000, "rate": size / (recorded - tick)}


async def _put(app: Perdure, calls: list) -> float:
    """Put the schedules on record in large pieces; the instant of their first tick."""
    storage = await app._runtime.storage()
    tick = math.ceil(time.time() + AHEAD + len(calls) / 2_000)
    at = datetime.fromtimestamp(tick, UTC)
    rule = rule_of(
        f"{at.second} {at.minute} {at.hour} * * *",
        timezone="UTC", start=None, end=None, max_runs=None, missed="skip", overlap="allow",
    )  # fmt: skip
    now = await storage.now()
    writes = []
    for number, call in enumerate(calls):
        name = f"schedule-{number:06}"
        writes.append(write(name, start_from(schedule_of(app, name, call, rule), now), 0))
    for start in range(0, len(writes), storage.chunk):
        await storage.kv_write(writes[start : start + storage.chunk])
    if time.time() > tick - 1:
        raise Wrong("putting the schedules on record took longer than planned: the tick is over")
    return float(tick)


async def _until_recorded(app: Perdure, size: int) -> float:
    storage = await app._runtime.storage()
    deadline = time.time() + 600
    while time.time() < deadline:
        if await storage.count(Filter(task="note")) >= size:
            return time.time()
        await asyncio.sleep(0.02)
    raise Wrong("not every schedule had fired after 600 s")


async def _check(app: Perdure, ran: Counter[int], size: int, tick: float) -> None:
    if len(ran) != size or set(ran.values()) != {1}:
        raise Wrong(f"{size} schedules, {len(ran)} jobs run, {sum(ran.values())} times")
    oldest = await app.jobs.count(task="note", before=datetime.fromtimestamp(tick, UTC))
    if oldest or await app.jobs.count(task="note") != size:
        raise Wrong(f"{oldest} jobs were made before their tick")
