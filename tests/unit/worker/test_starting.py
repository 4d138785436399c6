"""How a worker starts when something is in its way: it tries again, unless the app itself is broken."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from perdure import Perdure, WorkerPool, WorkerSpec
from tests.support.addresses import OF_EACH_KIND, address
from tests.support.plant import SOURCE, Plant
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

# the import of the app waits while there is a file `hold`
SLOW_IMPORT = """

while os.path.exists("hold"):
    time.sleep(0.02)
"""
WAYS = {"alone": ["--no-supervisor"], "supervised": ["--spares", "0"], "two": ["--processes", "2", "--spares", "0"]}


@pytest.fixture
def plant(tmp_path):
    plant = Plant(tmp_path, address("sqlite", tmp_path), SLOW_IMPORT)
    yield plant
    plant.stop()


class Unreached:
    """A store that nobody reaches until `appear()`."""

    def __init__(self, kind: str, folder) -> None:
        self.proxy = None
        if kind == "sqlite":
            self._folder = folder / "later"
            self.url = f"sqlite:///{self._folder}/jobs.db"
            return
        self.proxy = Proxy(address(kind, folder))
        self.proxy.refuse(True)
        self.url = self.proxy.url

    def appear(self) -> None:
        if self.proxy is None:
            self._folder.mkdir()
        else:
            self.proxy.refuse(False)

    def close(self) -> None:
        if self.proxy is not None:
            self.proxy.__exit__()


@pytest.fixture(params=["sqlite", *OF_EACH_KIND])
def unreached(request, tmp_path):
    unreached = Unreached(request.param, tmp_path)
    yield unreached
    unreached.close()


# ---- a runner that does not live to say hello ------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_runner_that_is_killed_while_it_starts_is_started_again(plant, number):
    (plant.folder / "hold").touch()
    worker = plant.start("--processes", "2", "--spares", "0")
    for runner in wait_until(lambda: len(plant.runners()) == 2 and plant.runners()):
        os.kill(runner, number)
    told = rf"did not start: was killed by {number.name}.*; the next start is in (\d+) s at the earliest"
    wait_until(lambda: len(re.findall(told, plant.said())) == 2, otherwise=plant.said)
    assert re.findall(told, plant.said()) == ["2", "4"]
    (plant.folder / "hold").unlink()

    async def work() -> object:
        async with plant.app:
            return (await plant.ended(await plant.enqueue("add", 1, 2))).result

    assert asyncio.run(work()) == 3
    assert worker.poll() is None
    assert plant.stop() == [0]


# the interpreter of a runner notes that it started, and waits while there is a file `hold`
SLOW_INTERPRETER = """
import os, sys, time

if "--runner" in sys.orig_argv:
    open(f"interpreter-{os.getpid()}", "w").close()
    while os.path.exists("hold"):
        time.sleep(0.02)
"""


def test_a_runner_that_is_interrupted_while_its_interpreter_starts_is_started_again(plant):
    """Python would raise KeyboardInterrupt there, and exit with 1 as if the app were broken."""
    (plant.folder / "sitecustomize.py").write_text(SLOW_INTERPRETER)
    (plant.folder / "hold").touch()
    worker = plant.start("--spares", "0")
    (started,) = wait_until(lambda: list(plant.folder.glob("interpreter-*")))
    os.kill(int(started.name.partition("-")[2]), signal.SIGINT)
    (plant.folder / "hold").unlink()
    wait_until(lambda: "did not start: was killed by SIGINT" in plant.said() or worker.poll() is not None)
    wait_until(lambda: "slots on" in plant.said() or worker.poll() is not None)
    assert plant.stop() == [0]
    assert "did not start: was killed by SIGINT" in plant.said()


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("import nowhere", 1, "nowhere"),
        ("from perdure import Perdure\napp = Perdure('memory://')", 2, "has no tasks"),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit(0)", 1, ""),
        (
            "from perdure import Perdure\napp = Perdure('nosql://x')\n@app.task\ndef f(): ...",
            1,
            "unknown store 'nosql'",
        ),
        ("from perdure import Perdure\napp = Perdure(durability='most')\n@app.task\ndef f(): ...", 2, "durability"),
    ],
    ids=["import", "no tasks", "exit 7", "exit 0", "url", "option"],
)
def test_a_broken_app_ends_the_worker(plant, program, code, told, processes):
    (plant.folder / "plant.py").write_text(program)
    assert plant.start("--processes", processes).wait(60) == code
    assert told in plant.said()


@pytest.mark.skipif("valkey" not in OF_EACH_KIND, reason="there is no Valkey")
def test_a_server_that_is_not_configured_as_the_app_demands_ends_the_worker(plant, tmp_path):
    app = f"Perdure({address('valkey', tmp_path)!r}, durability='full')"  # the server syncs every second only
    (plant.folder / "plant.py").write_text(f"from perdure import Perdure\napp = {app}\n@app.task\ndef f(): ...")
    assert plant.start().wait(60) == 1
    assert 'durability="full" refused' in plant.said()


# ---- a store that is not there yet -----------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_is_unreachable_at_start_is_waited_for(unreached, tmp_path, way):
    plant = Plant(tmp_path, unreached.url)
    worker = plant.start(*WAYS[way])
    try:
        told = r"the store cannot be opened yet: .*; the next try is in (\d+) s"
        wait_until(lambda: {"1", "2"} <= set(re.findall(told, plant.said())), 90, otherwise=plant.said)
        unreached.appear()

        async def work() -> object:
            async with plant.app:
                return (await plant.ended(await plant.enqueue("add", 1, 2))).result

        assert asyncio.run(work()) == 3
        assert worker.poll() is None
        assert plant.stop() == [0]
    finally:
        plant.stop()


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_waits_for_its_store_can_be_stopped(unreached, tmp_path, way, machine):
    plant = Plant(tmp_path, unreached.url)
    worker = plant.start(*WAYS[way])
    try:
        wait_until(lambda: "the store cannot be opened yet" in plant.said(), 90)
        worker.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        assert worker.wait(60) == 0
        assert time.monotonic() - asked < machine.seconds(5)
    finally:
        plant.stop()


@pytest.mark.parametrize("kind", ["worker", "pool"])
async def test_run_waits_for_the_store(unreached, caplog, kind):
    app = Perdure(unreached.url)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    worker = app.worker() if kind == "worker" else WorkerPool(app, [WorkerSpec(), WorkerSpec(queues=["other"])])
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(90):
        while caplog.text.count("the store cannot be opened yet") < 2:
            await asyncio.sleep(0.05)
    unreached.appear()
    async with asyncio.timeout(60):
        job = await add.enqueue(1, 2)
        assert await job.result(timeout=60) == 3
    await worker.stop()
    await running
    await app.close()


async def test_a_run_that_waits_for_its_store_ends_when_it_is_told_to_stop(tmp_path, caplog):
    app = Perdure(f"sqlite:///{tmp_path}/later/jobs.db")

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    worker = app.worker()
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(30):
        while "the store cannot be opened yet" not in caplog.text:
            await asyncio.sleep(0.01)
        await worker.stop()
        await running


# ---- a runner that cannot be started at all --------------------------------------------------------
TEAM = """
import logging, os, sys
from perdure import Perdure
from perdure.worker.supervisor.supervisor import supervise
from perdure.worker.supervisor.team import Team
logging.basicConfig(level="INFO")
options = dict(queues=(), tasks=(), routing_key=None, unrouted=False)
options |= dict(concurrency=5, poll=0.2, grace=1.0, unknown="leave", batch_size=())
supervise(Team(
    command=[os.path.join(os.getcwd(), "python"), "-m", "perdure", "worker", "plant:app"],
    options={**options, "log_level": "info", "log_format": "text"},
    name="team",
    open_app=lambda url: Perdure(url, migrate=False),
    spares=0,
))
"""


def test_an_interpreter_that_is_missing_for_a_while_does_not_end_the_supervisor(plant):
    """As in the middle of a deployment, or when the machine has no processes or descriptors left."""
    with plant.written.open("ab") as errors:
        supervisor = subprocess.Popen(
            [sys.executable, "-c", TEAM], cwd=plant.folder, stderr=errors, env={**os.environ, "PYTHONPATH": str(SOURCE)}
        )
    plant.workers.append(supervisor)
    told = r"did not start: .*No such file.*; the next start is in (\d+) s at the earliest"
    wait_until(lambda: len(re.findall(told, plant.said())) == 2, otherwise=plant.said)
    assert re.findall(told, plant.said()) == ["2", "4"]
    (plant.folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (plant.folder / "python").chmod(0o755)
    wait_until(lambda: "slots on" in plant.said(), otherwise=plant.said)
    assert plant.stop() == [0]
