"""The demo's account: what was promised, held against what the handlers really did."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from holdfast import Holdfast, Job, JobHandle

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
    held: dict[UUID, int] = field(default_factory=dict)  # attempts by job, of the worker when it was killed
    killed_at: float = field(default_factory=time.monotonic)
    recovery: float = 0.0
    seconds: float = 0.0
    states: dict[str, int] = field(default_factory=dict)
    receipts: list[int] = field(default_factory=list)
    checks: list[tuple[bool, str]] = field(default_factory=list)

    def check(self, held: bool, claim: str, otherwise: str = "") -> None:
        self.checks.append((held, claim if held or not otherwise else f"{claim}: NO, {otherwise}"))

    async def examine(self, app: Holdfast, handles: dict[str, list[JobHandle[Any]]]) -> None:
        """Hold every job of the shop against its effects."""
        found = await _jobs_of(app, "shop")
        earlier, self.checks = self.checks, []
        missing = [handle for some in handles.values() for handle in some if handle.id not in found]
        self.check(not missing, f"all {self.enqueued:,} jobs are on record, none was lost", f"{len(missing)} missing")
        unended = sum(not job.state.final for job in found.values())
        self.check(unended == 0, "every one of them came to its end", f"{unended} did not")
        self._examine_the_killed(found)
        self._examine_thumbnails(found)
        self._examine_receipts(found)
        self._examine_fetches(found)
        self.checks += earlier

    def _examine_the_killed(self, found: dict[UUID, Job]) -> None:
        again = sum(id in found and found[id].attempt > attempt for id, attempt in self.held.items())
        claim = f"the {len(self.held)} jobs of the killed worker were taken over by the others"
        self.check(again == len(self.held) > 0, claim, f"{again} were")

    def _examine_thumbnails(self, found: dict[UUID, Job]) -> None:
        made = Counter(tasks.lines("thumbnails"))
        expected = sum(job.task == "thumbnail" and job.state == "succeeded" for job in found.values())
        twice = sum(count > 1 for count in made.values())
        claim = (
            f"effects outside the store: {expected:,} thumbnails, each made at least once; {twice} were made twice, "
        )
        claim += "by the worker that died and by the one that took over"
        self.check(len(made) == expected > 0, claim, f"{len(made):,} were made")

    def _examine_receipts(self, found: dict[UUID, Job]) -> None:
        expected = sum(job.task == "charge" and job.state == "succeeded" for job in found.values())
        twice = sum(count > 1 for count in Counter(tasks.lines("charges")).values())
        claim = f"effects inside ctx.transaction(): {len(self.receipts):,} receipts for {expected:,} charges, exactly "
        claim += f"one each; {twice} of these handlers ran twice"
        self.check(len(self.receipts) == len(set(self.receipts)) == expected > 0, claim)

    def _examine_fetches(self, found: dict[UUID, Job]) -> None:
        fetched = len(set(tasks.lines("fetches")))
        retried = sum(job.task == "fetch" and job.state == "succeeded" and bool(job.errors) for job in found.values())
        self.check(fetched == retried > 0, f"{retried:,} jobs failed at first, were retried and succeeded")

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


async def _jobs_of(app: Holdfast, queue: str) -> dict[UUID, Job]:
    found: dict[UUID, Job] = {}
    cursor = None
    while True:
        page = await app.jobs.find(queue=queue, limit=500, cursor=cursor)
        found |= {job.id: job for job in page.items}
        if page.cursor is None:
            return found
        cursor = page.cursor
