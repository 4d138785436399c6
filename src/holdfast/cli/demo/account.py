"""The demo's account: what was promised, held against what the handlers really did."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast import Holdfast, Job, JobHandle, State

from . import tasks
from .screen import Screen


class Broken(Exception):
    """Something did not hold that the demo claims."""


@dataclass
class Account:
    jobs: int
    enqueued: int = 0
    enqueue_rate: float = 0.0
    run_rate: float = 0.0
    held: int = 0
    killed_at: float = field(default_factory=time.monotonic)
    recovery: float = 0.0
    seconds: float = 0.0
    states: dict[str, int] = field(default_factory=dict)
    receipts: list[int] = field(default_factory=list)
    twice: int = 0
    checks: list[tuple[bool, str]] = field(default_factory=list)

    def check(self, held: bool, text: str) -> None:
        self.checks.append((held, text))

    async def examine(self, app: Holdfast, handles: dict[str, list[JobHandle[Any]]]) -> None:
        """Hold every job of the shop against its effects."""
        found = await _jobs_of(app, "shop")
        missing = [handle for some in handles.values() for handle in some if str(handle.id) not in found]
        self.check(not missing, f"all {self.enqueued:,} jobs are on record, none was lost ({len(missing)} missing)")
        open_jobs = sum(not job.state.final for job in found.values())
        self.check(open_jobs == 0, f"every job came to its end ({open_jobs} still open)")
        self._examine_files(found)
        self._examine_receipts(found)
        again = sum(job.attempt > 1 and job.task in ("thumbnail", "charge") for job in found.values())
        self.check(again >= self.held > 0, f"the {self.held} jobs of the killed worker were run again by the others")

    def _examine_files(self, found: dict[str, Job]) -> None:
        done = Counter(tasks.lines("thumbnails"))
        expected = sum(job.task == "thumbnail" and job.state == "succeeded" for job in found.values())
        self.twice = sum(count > 1 for count in done.values())
        self.check(
            len(done) == expected,
            f"effects outside the store: {expected:,} thumbnails, each made at least once; "
            f"{self.twice} made twice, by the worker that died and by its heir",
        )
        fetched = len(set(tasks.lines("fetches")))
        failed_first = sum(job.task == "fetch" and len(job.errors) > 0 for job in found.values())
        self.check(fetched == failed_first > 0, f"{fetched:,} jobs failed at first, were retried and succeeded")

    def _examine_receipts(self, found: dict[str, Job]) -> None:
        expected = sum(job.task == "charge" and job.state == "succeeded" for job in found.values())
        repeated = sum(count > 1 for count in Counter(tasks.lines("charges")).values())
        exact = len(self.receipts) == len(set(self.receipts)) == expected > 0
        self.check(
            exact,
            f"effects inside ctx.transaction(): {len(self.receipts):,} receipts for {expected:,} charges, exactly one "
            f"each, although {repeated} handlers ran twice",
        )

    def show(self, screen: Screen) -> None:
        """The account. Broken, if anything did not hold."""
        screen.section("The account", "Counted from what the handlers did, not from what the queue says about itself.")
        for held, text in self.checks:
            screen.check(held, text)
        screen.line()
        for name, value in self._facts():
            screen.fact(name, value)
        if broken := [text for held, text in self.checks if not held]:
            raise Broken(f"{len(broken)} of {len(self.checks)} claims did not hold")
        screen.line()
        screen.say("The promise: at-least-once execution; at most one accepted completion per attempt; exactly-once")
        screen.say("effects when they are written in the completion's own transaction.")
        screen.line()
        screen.say(f"The app that ran:   {tasks.__file__}")
        screen.say("Read next:          docs/start, then docs/guide")
        screen.say("Try next:           holdfast demo --keep, holdfast --help")

    def _facts(self) -> list[tuple[str, str]]:
        counts = ", ".join(f"{count:,} {state}" for state, count in self.states.items() if count)
        return [
            ("jobs", counts),
            ("enqueue, in bulk", f"{self.enqueue_rate:,.0f} a second, each on disk"),
            ("run, start to end", f"{self.run_rate:,.0f} a second, two worker processes"),
            ("time to recover", f"{self.recovery:.1f} s from kill -9 to the last of its jobs done (lease 2 s)"),
            ("all of this", f"{self.seconds:.1f} s"),
        ]


async def _jobs_of(app: Holdfast, queue: str) -> dict[str, Job]:
    found: dict[str, Job] = {}
    cursor = None
    while True:
        page = await app.jobs.find(queue=queue, limit=500, cursor=cursor, state=list(State))
        found |= {str(job.id): job for job in page.items}
        if page.cursor is None:
            return found
        cursor = page.cursor
