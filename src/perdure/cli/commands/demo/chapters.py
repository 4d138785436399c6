"""The chapters of the demo. Each shows one capability and says why it matters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from perdure import Call, Job, JobHandle, State, Unique

from . import tasks
from .screen import Screen
from .summary import Account, failed_by_itself
from .worker_processes import SLOTS, Fleet

WORKERS = ("worker-1", "worker-2", "worker-3")
VICTIM = "worker-2"
INVOICES = 5
DRAIN_SECONDS = 5.0  # about how long the main run takes: long enough to watch, and to kill a worker
CHECK_EVERY = 0.1  # seconds


class Story:
    def __init__(self, screen: Screen, fleet: Fleet, folder: Path, jobs: int) -> None:
        self._screen = screen
        self._fleet = fleet
        self._folder = folder
        self._app = tasks.app
        self._account = Account(jobs)
        self._handles: dict[str, list[JobHandle[Any]]] = {}
        self.doing = "the start"

    async def run(self) -> None:
        began = time.monotonic()
        self._screen.line("Perdure: a durable job queue on the database you already have.")
        self._screen.say(f"Everything here happens in one SQLite file: {self._folder / 'demo.db'}")
        async with self._app:
            for chapter in (
                self._enqueue,
                self._promises,
                self._run_and_kill,
                self._dead_letters,
                self._watch_and_cancel,
                self._speed,
                self._finish,
            ):
                self.doing = chapter.__name__.strip("_").replace("_", " ")
                await chapter()
        self._account.seconds = time.monotonic() - began
        self._account.show(self._screen)

    # ---- chapters ----------------------------------------------------------------------------------
    async def _enqueue(self) -> None:
        self._screen.section(
            "Put work on record",
            "When enqueue returns, the jobs are committed and synced to the file. No process needs to remember them.",
        )
        await self._open_shop()
        calls = self._calls()
        began = time.monotonic()
        handles = await self._app.enqueue([call for _, _, call in calls])
        seconds = time.monotonic() - began
        for (name, number, _), handle in zip(calls, handles, strict=True):
            self._handles.setdefault(name, []).append(handle)
            self._account.asked.setdefault(name, {})[number] = handle.id
        self._account.enqueued, self._account.enqueue_rate = len(handles), len(handles) / seconds
        counts = ", ".join(f"{len(some):,} {name}" for name, some in self._handles.items())
        self._screen.say(f"{len(handles):,} jobs in {seconds:.2f} s = {len(handles) / seconds:,.0f} a second")
        self._screen.say(f"({counts})")

    async def _promises(self) -> None:
        self._screen.section(
            "Ask for later, and only once",
            "A delay is kept by the store and not by a sleeping process. A unique key makes a repeated request harmless.",
        )
        self._reminder = await tasks.remind.using(delay=6, priority=9).enqueue("the reminder came")
        unique = tasks.report.using(unique=Unique("report-may"))
        self._report = await unique.enqueue(10)
        second = await unique.enqueue(10)
        same = second.duplicate and second.id == self._report.id
        self._account.check(same, "a second job under a unique key is refused and leads to the first")
        self._screen.say("remind   scheduled, due in 6 s, before whatever waits then")
        self._screen.say("report   enqueued under the unique key report-may")
        self._screen.say(f"report   once more under that key: {_describe_duplicate(second)}")

    async def _run_and_kill(self) -> None:
        self._screen.section(
            "Run it, and kill a worker with -9 in the middle",
            f"{len(WORKERS)} worker processes share the work. One dies without notice; its jobs come back by themselves.",
        )
        for name in WORKERS:
            self._fleet.start(name)
        await self._until("the first jobs end", lambda done: done > 0)
        began = time.monotonic()
        await self._until("a third is done", lambda done: done >= self._account.enqueued // 3)
        await self._kill()
        await self._until("all is done", lambda done: done >= self._account.enqueued)
        seconds = time.monotonic() - began
        await self._show_progress(last=True)
        self._screen.say(f"All ended after {seconds:.1f} s. The last job that {VICTIM} had held ended")
        self._screen.say(f"{self._account.recovery:.1f} s after its death, run by another worker.")

    async def _dead_letters(self) -> None:
        self._screen.section(
            "Failures end somewhere you can see them",
            "Failed jobs are retried by their policy. What keeps failing becomes a dead letter: kept, explained, retriable.",
        )
        fetches = [job for job in await self._fetches() if failed_by_itself(job)]
        self._screen.say(f"{len(fetches):,} fetches failed once and were retried:")
        self._screen.say(
            f"  {_describe_error(fetches[0])}, then {fetches[0].state.value} in attempt {fetches[0].attempt}"
        )
        letters = (await self._app.dead.find(task="invoice")).items
        dead = letters[0]
        self._screen.say(f"{len(letters)} invoices failed {dead.failures} times and are dead letters:")
        self._screen.say(f"  {_describe_error(dead)}")
        (self._folder / "prices.txt").write_text("9.90 EUR\n")
        await self._app.dead.retry(dead.id)
        result = await tasks.invoice.handle(dead.id).result(timeout=20)
        self._screen.say(f"The price list is put there, one letter is retried under its old id: {result!r}")
        self._account.check("9.90" in result, "a dead letter that was mended and retried succeeds")

    async def _watch_and_cancel(self) -> None:
        self._screen.section(
            "Watch a job, stop a job",
            "Watchers see progress live. A cancelled job can no longer complete; its code learns it within about a "
            "second, whatever its lease.",
        )
        report = await tasks.report.enqueue(10)
        seen = 0
        async for job in report.watch(timeout=20):
            if job.progress:
                seen += 1
                page, of = job.progress["page"], job.progress["of"]
                self._screen.live(f"report   {self._screen.bar(page, of)} page {page} of {of}")
        self._screen.live(f"report   {self._screen.bar(1, 1)} {job.state.value}", last=True)
        self._account.check(seen >= 2 and job.state == "succeeded", "progress can be watched while a job runs")
        endless = await tasks.endless.enqueue()
        await self._wait_for_line("endless", "started")
        began = time.monotonic()
        await endless.cancel()
        await self._wait_for_line("endless", "stopped: cancelled")
        stopped = time.monotonic() - began
        self._screen.say(f"endless  cancelled; its code learned it and stopped {stopped * 1000:.0f} ms later")
        self._account.check((await endless.refresh()).state == "cancelled", "a running job can be cancelled")
        await self._reminder_comes()

    async def _reminder_comes(self) -> None:
        text = await self._reminder.result(timeout=20)
        job = await self._reminder.refresh()
        late = (job.started_at or job.created_at) - job.run_at
        self._screen.say(f"remind   {text!r}, {late.total_seconds() * 1000:.0f} ms after it was due")
        self._account.check(late.total_seconds() >= 0, "a scheduled job runs when it is due and not before")

    async def _speed(self) -> None:
        self._screen.section(
            "How fast the queue itself is",
            "The jobs before took their time on purpose. These do nothing, so this is the queue alone, on two processes.",
        )
        count = self._account.jobs
        await self._app.queues.pause("race")
        await self._app.enqueue([tasks.tiny.call(number) for number in range(count)])
        began = time.monotonic()
        await self._app.queues.resume("race")
        ended = 0
        while ended < count:
            await asyncio.sleep(CHECK_EVERY / 5)
            ended = await self._app.jobs.count(queue="race", state=State.SUCCEEDED)
            self._screen.live(f"{self._screen.bar(ended, count)} {ended:,} of {count:,}")
            self._fleet.check()
        seconds = time.monotonic() - began
        self._account.run_rate = count / seconds
        self._screen.live(f"{count:,} jobs in {seconds:.2f} s = {count / seconds:,.0f} a second", last=True)

    async def _finish(self) -> None:
        self._account.receipts = await (await tasks.receipts.enqueue()).result(timeout=20)
        for state in State:
            self._account.states[state.value] = await self._app.jobs.count(state=state)
        codes = await self._fleet.stop()
        self._account.check(set(codes.values()) == {0}, "workers end cleanly after SIGTERM")
        await self._account.examine(self._app, self._handles)

    # ---- steps -------------------------------------------------------------------------------------
    async def _open_shop(self) -> None:
        """Create the shop's table with a worker in this process."""
        async with self._app.worker(concurrency=1, tasks=["open_shop"]):
            await (await tasks.open_shop.enqueue()).result(timeout=20)

    def _calls(self) -> list[tuple[str, int, Call[Any]]]:
        """The jobs: mostly thumbnails, many charges, some fetches, a few invoices, mixed."""
        seconds = min(0.3, DRAIN_SECONDS * SLOTS * len(WORKERS) / self._account.jobs)
        work: list[tuple[str, int, Call[Any]]] = []
        for number in range(self._account.jobs - INVOICES):
            match number % 10:
                case 1 | 3 | 5:
                    work.append(("charge", number, tasks.charge.call(number, seconds)))
                case 7:
                    work.append(("fetch", number, tasks.fetch.call(number)))
                case _:
                    work.append(("thumbnail", number, tasks.thumbnail.call(number, seconds)))
        work[1:1] = [("invoice", number, tasks.invoice.call(number)) for number in range(INVOICES)]
        return work

    async def _until(self, what: str, enough: Callable[[int], bool]) -> None:
        """Show progress until enough jobs have ended, and note when the jobs of the killed worker have."""
        self.doing = f"waiting until {what}"
        left = frozenset(self._account.held)
        while not enough(await self._show_progress()):
            self._fleet.check()
            if left and not (left := left & await self._find_unfinished()):
                self._account.recovery = time.monotonic() - self._account.killed_at
            await asyncio.sleep(CHECK_EVERY)
        if left:
            self._account.recovery = time.monotonic() - self._account.killed_at

    async def _show_progress(self, *, last: bool = False) -> int:
        """Show progress and return how many jobs of the shop have ended."""
        total = self._account.enqueued
        running = await self._app.jobs.count(queue="shop", state=State.RUNNING)
        waiting = await self._app.jobs.count(queue="shop", state=[State.READY, State.SCHEDULED])
        ended = max(0, total - running - waiting)
        bar = self._screen.bar(ended, total)
        self._screen.live(f"{bar} {ended:>6,} ended  {running:>4,} running  {waiting:>6,} waiting", last=last)
        return ended

    async def _kill(self) -> None:
        """Kill the victim while it holds jobs."""
        self.doing = f"waiting until {VICTIM} holds jobs"
        while not await self._find_held_jobs():
            await asyncio.sleep(CHECK_EVERY / 5)
        self._fleet.kill(VICTIM)
        self._account.killed_at = time.monotonic()
        self._account.held = await self._find_held_jobs()
        self._screen.line()
        self._screen.say(f"kill -9 {VICTIM}: it held {len(self._account.held)} jobs. The others were not notified.")

    async def _find_held_jobs(self) -> dict[UUID, int]:
        """The jobs that the victim holds, with their attempts."""
        page = await self._app.jobs.find(queue="shop", state=State.RUNNING, limit=500)
        return {job.id: job.attempt for job in page.items if job.leased_by == VICTIM}

    async def _find_unfinished(self) -> frozenset[UUID]:
        states = [State.RUNNING, State.READY, State.SCHEDULED]
        page = await self._app.jobs.find(queue="shop", state=states, limit=100_000)
        return frozenset(job.id for job in page.items)

    async def _fetches(self) -> tuple[Job, ...]:
        return (await self._app.jobs.find(task="fetch", limit=100_000)).items

    async def _wait_for_line(self, name: str, line: str) -> None:
        self.doing = f"waiting for {line!r} of {name}"
        while line not in tasks.lines(name):
            self._fleet.check()
            await asyncio.sleep(0.01)


def _describe_error(job: Job) -> str:
    """The last error of a job, such as: fetch {"page":7}, attempt 1: ConnectionError."""
    error = job.errors[-1]
    return f"{job.task} {job.payload}, attempt {error.attempt}: {error.kind}"


def _describe_duplicate(handle: JobHandle[Any]) -> str:
    return "a duplicate of the first job" if handle.duplicate else "NOT a duplicate"
