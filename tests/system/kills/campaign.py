"""A campaign: workers do work of every kind while processes and servers are killed and frozen. Then the faults stop, the
work is drained, and the history is judged."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import servers
from perdure.core.job import WAITING, State
from perdure.core.record import Record
from perdure.errors import PerdureError
from perdure.storage.contract import Filter, Storage
from perdure.storage.urls import opener
from perdure.testing.checker import History, read_events

from ..crashes.databases_without_sql import rows_of
from ..crashes.recording import Tally
from .program import LONGER_LEASE, Program
from .verdict import Verdict, judge
from .workers import WorkerProcess, Workers

RUNNING = Filter(states=(State.RUNNING,))
UNFINISHED = Filter(states=(*sorted(WAITING), State.RUNNING))
WORKERS = 3
BACKLOG = 120  # jobs: the producer pauses above it
STANDSTILL = 45.0  # seconds without a new attempt and without an end, after which what is left is stuck
RECOVERY = 6.0  # seconds until the next fault, if no work is done
FILES = ("sqlite", "sqlite+apsw")


@dataclass(frozen=True)
class Plan:
    """How often each fault happens. A store in a file has no server: there, all workers are killed at once instead."""

    kills: int
    server_kills: int
    zombies: int

    def faults(self, chance: random.Random) -> list[str]:
        faults = ["kill"] * self.kills + ["server"] * self.server_kills + ["zombie"] * self.zombies
        chance.shuffle(faults)
        return faults


@dataclass
class Done:
    """What was done to the processes."""

    runners_killed: int = 0
    supervisors_killed: int = 0
    workers_killed: int = 0
    server_kills: int = 0
    zombies: int = 0
    stale_holds: int = 0  # holds of frozen workers that another worker had taken before they went on

    @property
    def kills(self) -> int:
        return self.runners_killed + self.supervisors_killed + self.workers_killed


class Campaign:
    def __init__(self, kind: str, folder: Path, chance: random.Random, say: Callable[[str], None] = print) -> None:
        self._kind = kind
        self._chance = chance
        self._say = say
        self._folder = folder
        self._server = None if kind in FILES else servers.start(kind, durable=True, never_theirs=True, within=folder)
        self._url = f"{kind}:///{folder / 'jobs.db'}" if self._server is None else self._server.fresh()
        self._program = Program(self._url, folder)
        self._tally = Tally(str(folder / "history.jsonl"))
        self._errors: list[str] = []
        self.done = Done()

    async def run(self, plan: Plan, *, watch: bool) -> Verdict:
        try:
            return await self._run(plan, watch=watch and self._program.database.watches_moves)
        finally:
            if self._server is not None:
                await asyncio.to_thread(self._server.stop)

    async def _run(self, plan: Plan, *, watch: bool) -> Verdict:
        storage = opener(self._url)()  # apart from the app's, which has its own connections and troubles
        await storage.open()
        await asyncio.to_thread(self._program.database.prepare, watch=watch)
        began = time.monotonic()
        workers = Workers(self._folder, self._url, WORKERS)
        try:
            async with self._program.app:
                producing = asyncio.create_task(self._produce(storage))
                await self._until(lambda: self._tally.count("began") > 0, 60)
                await self._faults(plan, storage, workers)
                producing.cancel()
                with suppress(asyncio.CancelledError):
                    await producing
                deaf = await self._find_deaf(workers)
                await self._drain(storage)
                self._errors += workers.ended_alone + await asyncio.to_thread(workers.end)
        finally:
            workers.kill_all()
        history = await self._history(storage, watch=watch)
        await storage.close()
        return judge(history, self._program.expected, deaf, self._errors, time.monotonic() - began)

    # -- work ----------------------------------------------------------------------------------------
    async def _produce(self, storage: Storage) -> None:
        """Keep some work waiting. A verb that fails because the store is down leaves its outcome open."""
        while True:
            try:
                await self._program.enqueue_bundle(self._chance)
                while await storage.count(UNFINISHED) > BACKLOG:
                    await asyncio.sleep(0.1)
            except PerdureError as error:
                self._say(f"  producer: {type(error).__name__}: {str(error)[:150]}")
                await asyncio.sleep(0.5)
            except Exception as error:  # a caller is promised our own errors only
                self._errors.append(f"a verb raised {type(error).__qualname__}: {str(error)[:200]}")
                await asyncio.sleep(0.5)

    async def _find_deaf(self, workers: Workers) -> list[str]:
        """Workers that begin nothing though there is work for all of them and every fault is over."""
        workers.replace_ended()
        since = time.time()
        silent = {worker.name: worker for worker in workers.living}
        deadline = time.monotonic() + 90
        while silent and time.monotonic() < deadline:
            await self._program.enqueue_canaries(40)
            await asyncio.sleep(1.0)
            for event in read_events(self._folder / "history.jsonl"):
                if event["event"] == "began" and event["at"] > since:
                    for name in [name for name, worker in silent.items() if worker.runs(event["worker"])]:
                        del silent[name]
        return sorted(silent)

    async def _drain(self, storage: Storage) -> None:
        """Until nothing is left, or nothing moves any more."""
        seen: tuple[int, int] | None = None
        moved = time.monotonic()
        while time.monotonic() - moved < STANDSTILL:
            left = await storage.count(UNFINISHED)
            if not left and not await self._still_held(storage):
                return
            if (now := (left, self._tally.count("began"))) != seen:
                seen, moved = now, time.monotonic()
            await asyncio.sleep(0.2)

    async def _still_held(self, storage: Storage) -> bool:
        return any(row["stamp"] is not None for row in await rows_of(storage))

    async def _history(self, storage: Storage, *, watch: bool) -> History:
        database = self._program.database
        moves = await asyncio.to_thread(database.rows, "moves") if watch else []
        effects = await asyncio.to_thread(database.rows, "effects") if database.writes_effects else []
        events = read_events(self._folder / "history.jsonl")
        rows = await rows_of(storage)
        return History(events, rows, effects, sorted(moves, key=lambda move: move["number"]))

    # -- faults --------------------------------------------------------------------------------------
    async def _faults(self, plan: Plan, storage: Storage, workers: Workers) -> None:
        faults = plan.faults(self._chance)
        frozen: set[asyncio.Task[None]] = set()
        for number, fault in enumerate(faults, 1):
            await self._some_work()
            workers.replace_ended()
            match fault:
                case "kill":
                    await self._kill(storage, workers)
                case "server":
                    await self._kill_server(workers)
                case "zombie":
                    await self._one_free(workers)
                    worker, held = await self._freeze(storage, workers)
                    frozen.add(asyncio.create_task(self._thaw(storage, worker, held)))
            if number % 20 == 0:
                self._say(f"  {number} of {len(faults)} faults, {self._program.enqueued} jobs")
        await asyncio.gather(*frozen)

    async def _some_work(self) -> None:
        """Let some handlers begin, so that the next fault hits workers at work; not for long if none does."""
        enough = self._tally.count("began") + self._chance.randint(1, 30)
        moment = time.monotonic() + RECOVERY
        while time.monotonic() < moment and self._tally.count("began") < enough:
            await asyncio.sleep(0.005)

    async def _kill(self, storage: Storage, workers: Workers) -> None:
        """Kill a runner, a supervisor, or a worker with all its processes."""
        while True:
            worker = self._chance.choice(await self._one_free(workers))
            how = self._chance.choice(("runner", "runner", "whole", "supervisor")) if worker.supervised else "whole"
            if not await self._spare(storage, worker):
                break
            await asyncio.sleep(0.2)
        if how == "runner" and worker.kill_runner(self._chance):
            self.done.runners_killed += 1
            return
        if how == "supervisor":
            workers.orphans += worker.kill_supervisor()
            self.done.supervisors_killed += 1
        else:
            worker.kill()
            self.done.workers_killed += 1
        workers.replace(worker)

    async def _spare(self, storage: Storage, worker: WorkerProcess) -> bool:
        """Whether a kill now could make a job look like poison: the third loss is charged as the job's own fault. Most kills
        come unseen; only if some job has been charged already, the worker is stopped first, and its jobs are looked at.
        It is killed while it stands still."""
        try:
            async with asyncio.timeout(2):
                if not any(record.losses for record in await _unfinished(storage)):
                    return False
            await asyncio.to_thread(worker.freeze)
            async with asyncio.timeout(1):  # it may have been stopped in the middle of a write
                spared = any(record.losses > 1 for record in await _unfinished(storage))
        except (TimeoutError, PerdureError):
            spared = True
        if spared:
            worker.thaw()
        return spared

    async def _kill_server(self, workers: Workers) -> None:
        if self._server is None:
            for worker in list(workers.living):
                if not worker.frozen:
                    worker.kill()
                    workers.replace(worker)
        else:
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.5, 4.0)))
            await asyncio.to_thread(self._server.restart)
        self.done.server_kills += 1

    async def _freeze(self, storage: Storage, workers: Workers) -> tuple[WorkerProcess, list[Record]]:
        """Stop a worker that holds jobs, but not one in the middle of a write to a file: it would keep all others out."""
        while True:
            worker = self._chance.choice(await self._one_free(workers))
            await asyncio.to_thread(worker.freeze)
            held: list[Record] = []
            if not self._program.database.locked_by(worker.pids()):
                with suppress(TimeoutError, PerdureError):
                    async with asyncio.timeout(2):
                        records = await _unfinished(storage)
                    held = [record for record in records if worker.runs(record.leased_by)]
            if held and all(record.losses < 2 for record in held):
                return worker, held
            worker.thaw()
            await asyncio.sleep(0.1)

    async def _thaw(self, storage: Storage, worker: WorkerProcess, held: list[Record]) -> None:
        """Let it go on when other workers have its jobs."""
        deadline = time.monotonic() + LONGER_LEASE + 10
        taken: list[Record] = []
        while len(taken) < len(held) and time.monotonic() < deadline:
            with suppress(PerdureError):
                found = await storage.get([record.id for record in held])
                taken = [
                    old for old, new in zip(held, found, strict=True) if new is not None and new.stamp != old.stamp
                ]
            await asyncio.sleep(0.1)
        worker.thaw()
        self.done.zombies += 1
        self.done.stale_holds += len(taken)

    async def _one_free(self, workers: Workers) -> list[WorkerProcess]:
        """The workers that are not frozen; at least two, so that others can take what a frozen one holds."""
        while len(free := [worker for worker in workers.living if not worker.frozen]) < 2:
            await asyncio.sleep(0.1)
        return free

    async def _until(self, done: Callable[[], Any], within: float) -> None:
        async with asyncio.timeout(within):
            while not done():
                await asyncio.sleep(0.05)


async def _unfinished(storage: Storage) -> list[Record]:
    records, _ = await storage.find(UNFINISHED, 500, None)
    return records
