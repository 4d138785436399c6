"""Workers that are killed with -9 while they fire: no tick is lost, none has two jobs."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime

import pytest

from perdure import Perdure
from perdure.storage.contract import Filter
from tests.cli.conftest import environment
from tests.support.addresses import OF_EACH_KIND, address

SCHEDULES, KILLS = 30, 4
PROGRAM = """
import asyncio, sys
from perdure import Perdure

app = Perdure(sys.argv[1])

@app.task
async def note() -> None: ...

async def main():
    await app.worker(concurrency=5).run()
asyncio.run(main())
"""


async def killed_again_and_again(app):
    """Three workers; whenever there are new jobs, the oldest of them dies a moment later and another takes its place."""
    draw = random.Random(7)
    workers = [_start(app.url) for _ in range(3)]
    try:
        for _ in range(KILLS):
            before = await app.jobs.count()
            async with asyncio.timeout(100):
                while await app.jobs.count() == before:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(draw.uniform(0, 0.5))
            _kill(workers.pop(0))
            workers.append(_start(app.url))
    finally:
        for worker in workers:
            _kill(worker)


def _kill(worker):
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def _start(url):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("store", ["sqlite", *OF_EACH_KIND])
async def test_every_tick_once_under_kills(store, tmp_path):
    app = Perdure(address(store, tmp_path))

    @app.task
    async def note() -> None: ...

    async with app:
        storage = await app._runtime.storage()
        for number in range(SCHEDULES):
            await app.schedules.put(f"s{number}", "* * * * * *", note.call(), missed="all")
        await killed_again_and_again(app)
        schedules = await app.schedules.list()
        ticks: dict[str, Counter[datetime]] = {schedule.name: Counter() for schedule in schedules}
        cursor = None
        while True:
            records, cursor = await storage.find(Filter(task="note"), 500, cursor)
            for record in records:
                meta = json.loads(record.meta or "")
                tick = datetime.fromisoformat(meta["tick"])
                assert datetime.fromtimestamp(record.created_at / 1e6, UTC) >= tick
                ticks[meta["schedule"]][tick] += 1
            if cursor is None:
                break
        for schedule in schedules:
            found = ticks[schedule.name]
            assert set(found.values()) == {1}
            assert max(found) == schedule.last_at
            assert len(found) == schedule.runs == (max(found) - min(found)).total_seconds() + 1  # no second is left out
            assert schedule.runs >= 2
