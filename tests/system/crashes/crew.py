"""Workers as they are run in earnest, `perdure worker` with a supervisor, and kill -9 for runners and for whole workers.

Before it is killed, a process is stopped, and the store is asked whether a job has met two deaths already: the third would
rightly be taken for its fault. Then it is spared.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from perdure.core.job import State
from perdure.errors import PerdureError
from perdure.storage.contract import Filter, Storage

from .flows import FOLDER, URL
from .nursery import PACKAGES, ROOT
from .recording import Tally


class Crew:
    def __init__(self, folder: Path, url: str, size: int = 2, concurrency: int = 6) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(PACKAGES)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            URL: url,
            FOLDER: str(folder),
        }
        self._concurrency = concurrency
        self.runners_killed = self.workers_killed = 0
        self.workers: list[subprocess.Popen[bytes]] = []
        for _ in range(size):
            self._hire()

    @property
    def kills(self) -> int:
        return self.runners_killed + self.workers_killed

    async def campaign(self, store: Storage, history: Tally, chance: random.Random, kills: int, apart: int) -> None:
        """Kill so often, each time after some more jobs have begun, at most twice `apart`."""
        while self.kills < kills:
            enough = history.count("began") + chance.randint(1, 2 * apart)
            moment = time.monotonic() + chance.uniform(0.2, 1.0)  # or nothing begins
            while time.monotonic() < moment and history.count("began") < enough:
                await asyncio.sleep(0.005)
            await self._kill_one(store, chance)

    def kill_all(self) -> None:
        for worker in self.workers:
            _signal([worker.pid, *_children(worker.pid)] if worker.poll() is None else [], signal.SIGKILL)
            worker.wait()

    def said(self) -> str:
        return (self._folder / "workers.out").read_text(errors="replace")

    def _hire(self) -> None:
        with (self._folder / "workers.out").open("ab") as output:
            worker = subprocess.Popen(
                [
                    *(sys.executable, "-m", "perdure", "worker", "tests.system.crashes.flow_worker:app"),
                    *("--concurrency", str(self._concurrency), "--poll", "0.2", "--grace", "5"),
                ],
                cwd=ROOT,
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        self.workers.append(worker)

    async def _kill_one(self, store: Storage, chance: random.Random) -> None:
        worker = chance.choice(self.workers)
        runners = _children(worker.pid)
        if len(runners) < 2:  # a spare is started when the first one works
            return
        whole = self.kills % 3 == 2
        victims = [worker.pid, *runners] if whole else [chance.choice(runners)]
        _signal(victims, signal.SIGSTOP)
        if not await _may_die(store):
            _signal(victims, signal.SIGCONT)
            return
        _signal(victims, signal.SIGKILL)
        if whole:
            worker.wait()
            self.workers.remove(worker)
            self._hire()
        self.workers_killed += whole
        self.runners_killed += not whole


async def _may_die(store: Storage) -> bool:
    """Not if a job is at its last chance, nor if the store does not answer: the stopped process may be in the middle of a
    write, or the server was killed."""
    try:
        async with asyncio.timeout(0.5):
            running, _ = await store.find(Filter(states=(State.RUNNING,)), 500, None)
    except (TimeoutError, PerdureError):
        return False
    return all(record.losses < 2 for record in running)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
