"""The checks at the end of the demo: compare what was promised with what the handlers did."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from perdure import Job, JobHandle, Perdure

from . import tasks
from .screen import Screen

READ_NEXT = "https://github.com/perdure/perdure/blob/main/docs/start/first-job.md"


class Broken(Exception):
    """A claim of the demo does not hold."""


@dataclass
class Account:
    jobs: int
    enqueued: int = 0
    asked: dict[str, dict[int, UUID]] = field(default_factory=dict)  # by task: job ids by number
    enqueue_rate: float = 0.0
    run_rate: float = 0.0
    held: dict[UUID, int] = field(default_factory=dict)  # attempt by job, of the killed worker
    killed_at: float = field(default_factory=time.monotonic)
    recovery: float = 0.0
    seconds: float = 0.0
    states: dict[str, int] = field(default_factory=dict)
    receipts: list[int] = field(default_factory=list)
    checks: list[tuple[bool, str]] = field(default_factory=list)

    def check(self, held: bool, claim: str, otherwise: str = "") -> None:
        self.checks.append((held, claim if held or not otherwise else f"{claim}: NO, {otherwise}"))

    async def examine(self, app: Perdure, handles: dict[str, list[JobHandle[Any]]]) -> None:
        """Compare every job of the shop with its effects."""
        found = await _jobs_of(app, "shop")
        earlier, self.checks = self.checks, []
        missing = [handle for some in handles.values() for handle in some if handle.id not in found]
        self.check(not missing, f"all {self.enqueued:,} jobs are on record, none was lost", f"{len(missing)} missing")
        unended = sum(not job.state.final for job in found.values())
        self.check(unended == 0, "every one of them came to its end", f"{unended} did not")
        strays = sum(job.state == "dead" and job.task != "invoice" for job in found.values())
        self.check(strays == 0, "only the invoices that could not work became dead letters", f"{strays} others did")
        self._examine_the_killed(found)
        self._examine_thumbnails()
        self._examine_receipts()
        self._examine_fetches(found)
        self.checks += earlier

    def _examine_the_killed(self, found: dict[UUID, Job]) -> None:
        again = sum(id in found and found[id].attempt > attempt for id, attempt in self.held.items())
        claim = f"the {len(self.held)} jobs of the killed worker were taken over by the others"
        self.check(again == len(self.held) > 0, claim, f"{again} were")

    def _examine_thumbnails(self) -> None:
        made = Counter(map(int, tasks.lines("thumbnails")))
        asked = self.asked["thumbnail"]
        claim = (
            f"effects outside the store: {len(asked):,} thumbnails, each made at least once; {_describe_repeats(made)}"
        )
        self.check(made.keys() == asked.keys(), claim, f"{len(made):,} were made")
        self._examine_repeats("thumbnail", made)

    def _examine_receipts(self) -> None:
        asked = self.asked["charge"]
        ran = Counter(map(int, tasks.lines("charges")))
        claim = f"effects inside ctx.transaction(): {len(self.receipts):,} receipts for {len(asked):,} charges, "
        claim += f"exactly one each; {_describe_repeats(ran)}"
        self.check(len(self.receipts) == len(asked) and set(self.receipts) == asked.keys(), claim)
        self._examine_repeats("charge", ran)

    def _examine_repeats(self, task: str, ran: Counter[int]) -> None:
        """Only handlers of the killed worker may have run twice."""
        repeated = {self.asked[task][number] for number, count in ran.items() if count > 1}
        stray = len(repeated - self.held.keys())
        self.check(stray == 0, f"no {task} ran twice but those that the killed worker held", f"{stray} did")

    def _examine_fetches(self, found: dict[UUID, Job]) -> None:
        """Each fetch failed at first, except those whose first attempt the killed worker lost."""
        fetched = set(map(int, tasks.lines("fetches")))
        unfailed = {id for id, job in found.items() if job.task == "fetch" and not failed_by_itself(job)}
        claim = f"{len(fetched) - len(unfailed):,} jobs failed at first, were retried and succeeded"
        if unfailed:
            claim += f" ({len(unfailed)} more lost the first attempt with the killed worker)"
        self.check(fetched == self.asked["fetch"].keys() and unfailed <= self.held.keys(), claim)

    def show(self, screen: Screen) -> None:
        """Print the checks. Raise Broken if one does not hold."""
        screen.section(
            "The account",
            "Effects are counted from what the handlers wrote; states and attempts are read from the store.",
        )
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
        screen.say(f"Read next:          {READ_NEXT}")
        screen.say("Try next:           perdure demo --keep, perdure --help")

    def _facts(self) -> list[tuple[str, str]]:
        counts = ", ".join(f"{count:,} {state}" for state, count in self.states.items() if count)
        return [
            ("jobs", counts),
            ("enqueue, in bulk", f"{self.enqueue_rate:,.0f} a second, committed and synced"),
            ("run, start to end", f"{self.run_rate:,.0f} a second, jobs that do nothing, two worker processes"),
            ("time to recover", f"{self.recovery:.1f} s from kill -9 to the last of its jobs done (lease 2 s)"),
            ("all of this", f"{self.seconds:.1f} s"),
        ]


def failed_by_itself(job: Job) -> bool:
    return any(error.kind == "ConnectionError" for error in job.errors)


def _describe_repeats(counts: Counter[int]) -> str:
    repeated = sum(count > 1 for count in counts.values())
    if not repeated:
        return "this time no handler ran twice"
    return "1 handler ran twice" if repeated == 1 else f"{repeated} handlers ran twice"


async def _jobs_of(app: Perdure, queue: str) -> dict[UUID, Job]:
    found: dict[UUID, Job] = {}
    cursor = None
    while True:
        page = await app.jobs.find(queue=queue, limit=500, cursor=cursor)
        found |= {job.id: job for job in page.items}
        if page.cursor is None:
            return found
        cursor = page.cursor
