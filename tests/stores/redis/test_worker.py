"""Real workers on a real server, and kills of both: nothing is lost, nothing is accepted twice; and the command line."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import perdure
from perdure import Perdure, State
from perdure.cli.root import perdure as command_line

PACKAGES = Path(perdure.__file__).parents[1]
PROGRAM = """
import asyncio, os, sys
from perdure import Context, Perdure

app = Perdure({url!r}, lease=2.0)

@app.task
async def work(ctx: Context, number: int) -> int:
    with open({journal!r}, "a") as journal:
        journal.write(f"{{number}} {{os.getpid()}}\\n")
    await asyncio.sleep(0.05)
    return number

@app.task
async def stays(ctx: Context) -> str:
    with open({journal!r}, "a") as journal:
        journal.write(f"stays {{os.getpid()}}\\n")
    if ctx.job.attempt == 1:
        await asyncio.sleep(3600)
    return "came back"
"""


class Plant:
    """A program, its workers, and its journal of what was begun."""

    def __init__(self, folder, url):
        self.folder = folder
        self.journal = folder / "journal"
        self.journal.touch()
        (folder / "plant.py").write_text(PROGRAM.format(url=url, journal=str(self.journal)))
        self.app = Perdure(url, lease=2.0)

        @self.app.task
        async def work(number: int) -> int: ...

        @self.app.task
        async def stays() -> str: ...

        self.work, self.stays = work, stays
        self.workers = []

    def start(self):
        paths = os.pathsep.join([str(self.folder), str(PACKAGES)])
        with (self.folder / "errors").open("ab") as errors:
            worker = subprocess.Popen(
                [sys.executable, "-m", "perdure", "worker", "plant:app", "--no-supervisor", "--concurrency", "10"],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": paths},
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.workers.append(worker)
        return worker

    def begun(self):
        return Counter(line.split()[0] for line in self.journal.read_text().splitlines())

    async def until(self, done, within=60):
        async with asyncio.timeout(within):
            while not await done():
                await asyncio.sleep(0.05)

    async def ended(self, count):
        async def done():
            return await self.app.jobs.count(state=State.SUCCEEDED) >= count

        await self.until(done)

    def stop(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(30)


@pytest.fixture
def plant(tmp_path, url):
    plant = Plant(tmp_path, url)
    yield plant
    plant.stop()


async def test_a_killed_worker_loses_nothing(plant):
    async with plant.app:
        handles = await plant.app.enqueue([plant.work.call(number) for number in range(300)])
        stays = await plant.stays.enqueue()
        first = plant.start()

        async def some_begun():
            return plant.begun()["stays"] == 1 and len(plant.begun()) > 50

        await plant.until(some_begun)
        first.kill()
        plant.start()
        await plant.ended(301)
        assert await stays.result(timeout=30) == "came back"
        assert [await handle.result(timeout=30) for handle in handles] == list(range(300))
        jobs = [await handle.refresh() for handle in handles]
        assert {job.state for job in jobs} == {State.SUCCEEDED}
        begun = plant.begun()
        assert all(begun[str(number)] >= 1 for number in range(300))
        # begun again: what ran in the dead worker's 10 slots, and what had just ended there and was not stored yet
        assert sum(begun.values()) <= 301 + 3 * 10
        assert all(job.attempt >= begun[str(job.result)] for job in jobs)


async def test_a_killed_server_loses_nothing_that_was_acknowledged(own, tmp_path):
    server = own(appendfsync="always")
    plant = Plant(tmp_path, server.fresh())
    try:
        async with plant.app:
            plant.start()
            plant.start()
            handles = await plant.app.enqueue([plant.work.call(number) for number in range(200)])
            for some in (20, 100):

                async def begun(some=some):
                    return len(plant.begun()) >= some

                await plant.until(begun)
                server.kill()
                server.restart()
            handles += await plant.app.enqueue([plant.work.call(number) for number in range(200, 300)])
            await plant.ended(300)
            assert [await handle.result(timeout=30) for handle in handles] == list(range(300))
    finally:
        plant.stop()
    assert [worker.returncode for worker in plant.workers] == [0, 0]


# ---- the command line ------------------------------------------------------------------------------
def said(*arguments):
    done = CliRunner().invoke(command_line, list(arguments))
    return done.exit_code, done.output


def test_the_command_line(tmp_path, url):
    code, text = said("jobs", "list", "--url", url)
    assert code == 1
    assert "run `perdure migrate`" in text
    assert said("migrate", "status", "--url", url) == (
        1,
        "schema version 0 of 1\nto be run: 0001 format\n",
    )
    assert "HSET" in said("migrate", "--dry-run", "--url", url)[1]
    assert said("migrate", "--url", url) == (
        0,
        "migrated: 0001 format\n",
    )
    assert said("migrate", "--url", url) == (0, "nothing to do: the schema is up to date\n")
    asyncio.run(_fill(tmp_path, url))
    code, text = said("jobs", "list", "--url", url, "--json")
    assert (code, len(json.loads(text)["jobs"])) == (0, 3)
    assert "default" in said("queues", "list", "--url", url)[1]
    assert said("queues", "pause", "default", "--url", url)[0] == 0
    code, text = said("doctor", "--url", url, "--json")
    checks = {check["name"]: check for check in json.loads(text)["checks"]}
    assert code == 0
    assert checks["durability"]["found"].startswith("grade C")
    assert checks["paused queues"]["status"] == "warn"
    assert {"server", "memory", "latency", "clock"} <= set(checks)
    assert "noeviction" in checks["memory"]["found"]


def test_the_doctor_tells_what_is_wrong(own):
    from .helpers import client

    server = own()
    with client(server.url) as raw:
        raw.config_set("maxmemory-policy", "allkeys-lru")
    code, text = said("doctor", "--url", server.url)
    assert code == 1
    assert "CONFIG SET maxmemory-policy noeviction" in text


async def _fill(folder, url):
    plant = Plant(folder, url)
    async with plant.app:
        await plant.app.enqueue([plant.work.call(number) for number in range(3)])
