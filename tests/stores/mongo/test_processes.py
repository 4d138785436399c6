"""Several processes at once on one replica set: nothing twice, nothing lost, and the command line."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from perdure import State
from perdure.core.ids import new_stamp
from perdure.storage.contract import Claim, Filter, QueueAtCapacity, QueueSettings, Want

from .helpers import fresh, job, store_at
from .roles import app_at

ROOT = Path(__file__).parents[3]


def role(name, url, file):
    return subprocess.Popen([sys.executable, "-m", "tests.stores.mongo.roles", name, url, str(file)], cwd=ROOT)


@pytest.fixture
def processes():
    with ExitStack() as stack:
        running = []

        def start(*arguments):
            process = stack.enter_context(role(*arguments))
            running.append(process)
            stack.callback(process.kill)
            return process

        yield start


async def ended(app, count, within=90):
    async with asyncio.timeout(within):
        while await app.jobs.count(state=State.SUCCEEDED) < count:
            await asyncio.sleep(0.1)


async def test_claimers_that_race_take_every_job_once():
    """Each has a store and a client of its own; only the server knows of all of them."""
    url = fresh()
    async with store_at(url) as store:
        await store.enqueue([job() for _ in range(400)])
        taken: Counter[str] = Counter()

        async def claimer(number):
            async with store_at(url) as own:
                while claimed := await own.claim(Claim(f"w{number}", new_stamp(), (Want(20),))):
                    taken.update(record.id for record in claimed)

        await asyncio.gather(*(claimer(number) for number in range(4)))
        # whoever left jobs to others may have seen nothing while some were left
        taken.update(record.id for record in await store.claim(Claim("last", new_stamp(), (Want(500),))))
        assert len(taken) == 400
        assert set(taken.values()) == {1}
        assert await store.count(Filter(states=(State.RUNNING,))) == 400


async def test_bounded_queues_are_never_too_full():
    url = fresh()
    async with store_at(url) as store, store_at(url) as other:
        await store.configure(QueueSettings("small", max_depth=10))

        async def put(one):
            try:
                await one.enqueue([job(queue="small")])
            except QueueAtCapacity:
                return 0
            return 1

        stored = await asyncio.gather(*(put(one) for _ in range(12) for one in (store, other)))
        assert sum(stored) == 10
        assert (await store.queues())[0].depth == 10


async def test_workers_of_several_processes_share_the_work(processes, tmp_path):
    url, file = fresh(), tmp_path / "log"
    app, note = app_at(url, str(file))
    async with app:
        await app.enqueue([note.call(n) for n in range(300)])
        workers = [processes("work", url, file) for _ in range(3)]
        await ended(app, 300)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    attempts = Counter(int(line.split()[0]) for line in file.read_text().splitlines())
    assert attempts == Counter(range(300)), "every job ran once"


async def test_kill_9_of_workers_loses_nothing(processes, tmp_path):
    url, file = fresh(), tmp_path / "log"
    app, note = app_at(url, str(file))
    chance = random.Random(7)
    async with app:
        await app.enqueue([note.call(n) for n in range(150)])
        workers = [processes("work", url, file) for _ in range(2)]
        for _ in range(2):
            begun = _lines(file)
            async with asyncio.timeout(60):
                while _lines(file) <= begun:
                    await asyncio.sleep(0.01)
            victim = workers.pop(chance.randrange(len(workers)))
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            workers.append(processes("work", url, file))
        await ended(app, 150)
        assert await app.jobs.count() == 150
        storage = await app._runtime.storage()
        rows, _ = await storage.find(Filter(), 1000, None)
    runs = Counter(int(line.split()[0]) for line in file.read_text().splitlines())
    assert set(runs) == set(range(150))
    for row in rows:
        number = int(row.result)
        assert runs[number] <= row.attempt, "no more runs than claims"


def _lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


# ---- the command line ------------------------------------------------------------------------------
def perdure(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "perdure", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_on_a_new_database():
    url = fresh()
    assert perdure("migrate", "status", "--url", url)[0] == 1
    code, told = perdure("migrate", "--dry-run", "--url", url)
    assert code == 0
    assert "perdure_place" in told
    code, told = perdure("jobs", "list", "--url", url)
    assert code != 0
    assert "perdure migrate" in told
    assert perdure("migrate", "--url", url)[0] == 0
    assert perdure("migrate", "status", "--url", url)[0] == 0
    code, told = perdure("doctor", "--url", url)
    assert code == 0
    for part in ("grade B", "replica set", "MongoDB", "clock"):
        assert part in told
    assert perdure("queues", "pause", "mail", "--url", url)[0] == 0
    assert "mail" in perdure("queues", "list", "--url", url)[1]
