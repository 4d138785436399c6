"""Workers that are killed with -9 while they fire: no tick is lost, none has two jobs."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from holdfast import Holdfast
from holdfast.storage.contract import Filter

from ..addresses import ON_SERVERS, address
from ..cli.conftest import environment

SCHEDULES, SECONDS = 30, 5
PROGRAM = """
import asyncio, sys
from holdfast import Holdfast

app = Holdfast(sys.argv[1])

@app.task
async def note() -> None: ...

asyncio.run(app.worker(concurrency=5).run())
"""


def killed_again_and_again(url, until):
    draw = random.Random(7)
    workers = [_start(url) for _ in range(3)]
    while time.time() < until:
        time.sleep(draw.uniform(0.2, 0.6))
        victim = workers.pop(0)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        workers.append(_start(url))
    time.sleep(1)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        assert worker.wait(60) == 0


def _start(url):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("store", ["sqlite", *ON_SERVERS])
async def test_every_tick_once_under_kills(store, tmp_path):
    app = Holdfast(address(store, tmp_path))

    @app.task
    async def note() -> None: ...

    async with app:
        storage = await app._storage()
        for number in range(SCHEDULES):
            await app.schedules.put(f"s{number}", "* * * * * *", note.call(), missed="all")
        await asyncio.to_thread(killed_again_and_again, app.url, time.time() + SECONDS)
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
