"""Bad values in every stored field, while a worker runs: what must hold, whatever the store.

A store takes part by a `Target`: where it is, and its mutations. A mutation names a stored field and a bad value, and
writes that value behind the store's back, into the row of the job that it is given or, in a table without jobs, into any
row. The store may refuse the value (`Refused`).

`run` does rounds. Each fills the store with jobs in every state, spoils some of them, lets a worker go on, and asks:

- a job enqueued now (the canary) succeeds within 2 s; on a busy machine, within ten times its usual time;
- every listing raises nothing, or one of our own errors;
- every job that was not spoiled ends as it should;
- no log line comes twice within a minute.

At the end everything is inspected, and each mutation is counted as set aside, tolerated or refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import monotonic
from typing import NamedTuple

from perdure import Limit, Perdure, PerdureError, State
from perdure.clock import SECOND
from perdure.ids import new_id, new_stamp
from perdure.job import FINAL, NewJob, Record
from perdure.lifecycle import Died, Succeeded, decide
from perdure.retry import DEFAULT_BACKOFF, DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION
from perdure.storage.contract import Claim, Note, QueueSettings, Shelving, Storage, Want
from perdure.testing.conformance.tools import fault
from perdure.upkeep import upkeep

CANARY_WITHIN = 2.0  # seconds
BUSY_MACHINE = 10  # times what the canary takes without bad values
ENDS_WITHIN = 40.0  # seconds that readable jobs of a round may take in all
LEASE = SECOND  # of jobs that a worker which is gone holds
GONE = "gone-worker"


class Refused(Exception):
    """The store does not take this value in this field."""


class Mutation(NamedTuple):
    """A bad value for a stored field. `write(job)` writes it into the row of this job, or into any row of a table that
    has none, and says which row it was: the job's id, or None. It runs in a thread."""

    where: str  # table and field
    value: str  # the name of the bad value
    write: Callable[[str], str | None]
    of_job: bool = True  # whether it spoils the job that it is given


class Target(ABC):
    """A store under the fuzzer."""

    url: str

    @abstractmethod
    def mutations(self) -> list[Mutation]:
        """Every stored field times every bad value. Called once the store holds rows in every table."""

    @abstractmethod
    def close(self) -> None:
        """Give up connections of its own."""


class Outcome(NamedTuple):
    mutation: Mutation
    fate: str  # "set aside", "tolerated", "refused by the store"


class Report:
    """What became of the mutations, and the slowest canary."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.canaries: list[float] = []
        self.usual = 0.0

    def table(self) -> str:
        """Field by outcome."""
        fates = ("set aside", "tolerated", "refused by the store")
        counts: dict[str, Counter[str]] = {}
        for mutation, fate in self.outcomes:
            counts.setdefault(mutation.where, Counter())[fate] += 1
        width = max(map(len, counts), default=5)
        lines = [f"{'field':<{width}}  " + "  ".join(fates)]
        for where in sorted(counts):
            lines.append(f"{where:<{width}}  " + "  ".join(f"{counts[where][fate]:>{len(fate)}}" for fate in fates))
        total = Counter(fate for _, fate in self.outcomes)
        lines.append(f"{'all':<{width}}  " + "  ".join(f"{total[fate]:>{len(fate)}}" for fate in fates))
        slowest = max(self.canaries, default=0.0)
        lines.append(
            f"{len(self.outcomes)} mutations; slowest canary {slowest:.2f} s, without bad values {self.usual:.2f} s"
        )
        return "\n".join(lines)


# ---- the log ---------------------------------------------------------------------------------------
class Lines(logging.Handler):
    """Remembers every line, to find those that come too often."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: dict[str, list[float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.setdefault(record.getMessage(), []).append(monotonic())

    def too_often(self) -> list[str]:
        return [
            line for line, times in self.seen.items() if any(later - earlier < 60 for earlier, later in pairwise(times))
        ]


@contextmanager
def listening() -> Iterator[Lines]:
    lines = Lines()
    logger = logging.getLogger("perdure")
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)


# ---- jobs in every state ---------------------------------------------------------------------------
def new_job(**fields: object) -> NewJob:
    plain: dict[str, object] = {
        "id": new_id(),
        "task": "work",
        "queue": "work",
        "payload": "{}",
        "lease": LEASE,
        "backoff": DEFAULT_BACKOFF.text(),
        "retention": DEFAULT_RETENTION.text(),
        "dead_retention": DEFAULT_DEAD_RETENTION.text(),
    }
    return NewJob(**{**plain, **fields})  # type: ignore[arg-type]


LIMITED = json.dumps([["fuzz", 50, 1000, 1_000_000]])
RICH: dict[str, object] = {
    "key": "k",
    "tenant": "t/1",
    "routing_key": None,
    "tags": '["a","b"]',
    "meta": '{"m":"1"}',
    "expires": 3600 * SECOND,
}


class Jobs:
    """The jobs of one round, by how they stand when they are spoiled."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ready = [new_job() for _ in range(number)]
        self.rich = [new_job(**RICH, unique_key=new_id(), unique_scope="active") for _ in range(number)]
        self.limited = [new_job(task="bounded", limits=LIMITED) for _ in range(number)]
        self.fair = [new_job(queue="fair", tenant=f"t{n % 3}") for n in range(number)]
        self.delayed = [new_job(delay=SECOND // 2) for _ in range(number)]
        self.later = [new_job(delay=3600 * SECOND, unique_key=new_id(), unique_scope="waiting") for _ in range(number)]
        self.held = [new_job(queue="held") for _ in range(number)]
        self.held_limited = [new_job(queue="held", limits=LIMITED) for _ in range(number)]
        self.parents = [new_job() for _ in range(number)]
        self.followers = [new_job(after=json.dumps([parent.id]), waits=1) for parent in self.parents]
        self.succeeded = [new_job(queue="done") for _ in range(number)]
        self.dead = [new_job(queue="done") for _ in range(number)]
        self.kept = [
            new_job(unique_key=new_id(), unique_scope="window", unique_window=99 * SECOND) for _ in range(number)
        ]

    def all(self) -> list[NewJob]:
        return [job for jobs in self.kinds() for job in jobs]

    def kinds(self) -> list[list[NewJob]]:
        return [value for value in vars(self).values() if isinstance(value, list)]

    def run_to_their_end(self) -> list[str]:
        """Those that end by themselves, unless they are spoiled or wait for one that is. Those that were held by a worker
        which is gone come back, and then run alone, one after the other: that would take too long."""
        stay = {job.id for job in (*self.later, *self.succeeded, *self.dead, *self.held, *self.held_limited)}
        return [job.id for job in self.all() if job.id not in stay]


async def fill(store: Storage, number: int) -> Jobs:
    """Put jobs in every state on record, none of which may start yet."""
    jobs = Jobs(number)
    for queue in ("work", "fair"):
        await store.pause(queue, True)
    for kind in jobs.kinds():
        await store.enqueue(kind)
    await store.shelve([Shelving("fuzz", new_id(), '{"a":1}', None, None, job=job.id) for job in jobs.ready[:3]])
    await _claim(store, jobs.held, limited=False)
    await _claim(store, jobs.held_limited, limited=True)
    ended = await _claim(store, [*jobs.succeeded, *jobs.dead], limited=False, queue="done")
    await store.note([Note(record.hold, '{"done":1}', ("a line", "another")) for record in ended])
    died = {job.id for job in jobs.dead}
    said = [
        decide(record, Died("hopeless", fault()) if record.id in died else Succeeded('{"r":1}')) for record in ended
    ]
    await store.apply(said)
    return jobs


async def _claim(store: Storage, jobs: Sequence[NewJob], *, limited: bool, queue: str = "held") -> list[Record]:
    """Hold jobs under the name of a worker that is gone."""
    claimed: list[Record] = []
    for _ in range(20):
        if len(claimed) >= len(jobs):
            break
        want = Want(len(jobs) - len(claimed), queues=(queue,), limited=limited)
        claimed += await store.claim(Claim(GONE, new_stamp(), (want,)))
    return claimed


# ---- a run -----------------------------------------------------------------------------------------
async def run(target: Target, *, seed: int, count: int, at_once: int = 400) -> Report:
    """Try `count` mutations, so many of them at once; AssertionError says what does not hold."""
    chance = random.Random(seed)
    report = Report()
    scene = Scene(target.url)
    app = scene.app
    pauses = upkeep.ROUND
    upkeep.ROUND = 0.2
    try:
        with listening() as lines:
            async with app.worker(concurrency=20, poll=0.2, queues=["work", "fair", "held", "canary"]):
                store = await app._storage()
                await store.configure(QueueSettings("fair", max_depth=100_000, fair=True, weights='{"t1":2}'))
                await fill(store, 2)
                await scene.put_schedules()
                report.usual = max([await scene.canary() for _ in range(3)])
                plan = await asyncio.to_thread(target.mutations)
                todo = _drawn(plan, count, chance)
                for begin in range(0, len(todo), at_once):
                    await _round(scene, store, todo[begin : begin + at_once], report, chance)
            assert not lines.too_often(), f"logged more than once a minute: {lines.too_often()[:5]}"
    finally:
        upkeep.ROUND = pauses
        target.close()
        await app.close()
    return report


class Scene:
    """The app under the fuzzer, with a task for jobs, one for the canary and one for schedules."""

    def __init__(self, url: str) -> None:
        self.app = app = Perdure(url)

        @app.task(name="work", queue="work")
        async def work() -> None: ...

        @app.task(name="canary", queue="canary", max_attempts=1)
        async def canary() -> int:
            return 1

        @app.task(name="tick", queue="work")
        async def tick() -> None: ...

        @app.task(name="bounded", queue="work", limit=Limit(max_running=50))  # so that the worker asks for such jobs
        async def bounded() -> None: ...

        self._canary = canary
        self._tick = tick

    async def canary(self) -> float:
        """Seconds that a job takes from its enqueue to its result."""
        began = monotonic()
        handle = await self._canary.enqueue()
        assert await handle.result(timeout=60) == 1
        return monotonic() - began

    async def put_schedules(self) -> None:
        for n in range(3):
            await self.app.schedules.put(f"tick{n}", "* * * * *", self._tick.call())


def _drawn(plan: Sequence[Mutation], count: int, chance: random.Random) -> list[Mutation]:
    """Every mutation once, in any order, and then again until there are enough."""
    drawn: list[Mutation] = []
    while len(drawn) < count:
        drawn += chance.sample(plan, min(len(plan), count - len(drawn)))
    return drawn


async def _round(
    scene: Scene, store: Storage, mutations: Sequence[Mutation], report: Report, chance: random.Random
) -> None:
    app = scene.app
    jobs = await fill(store, 1 + len(mutations) // 8)
    victims = jobs.all()
    chance.shuffle(victims)
    free = [job.id for job in victims]
    spoiled: set[str] = set()
    written: list[tuple[Mutation, str | None]] = []
    for mutation in mutations:
        victim = free.pop() if mutation.of_job else free[0]
        try:
            row = await asyncio.to_thread(mutation.write, victim)
        except Refused:
            report.outcomes.append(Outcome(mutation, "refused by the store"))
            continue
        spoiled.update([victim] if mutation.of_job else [], [row] if row is not None else [])
        written.append((mutation, row))
    for queue in ("work", "fair"):
        await store.pause(queue, False)
    took = await scene.canary()
    within = max(CANARY_WITHIN, BUSY_MACHINE * report.usual)
    what = sorted({f"{mutation.where} = {mutation.value}" for mutation, _ in written})
    assert took < within, f"the canary took {took:.1f} s, {within:.1f} s at most; spoiled were {what}"
    report.canaries.append(took)
    await look_at_everything(app, [job.id for job in jobs.all()])
    await _all_ended(store, jobs, spoiled)
    await look_at_everything(app, [job.id for job in jobs.all()])
    found = await _inspected(store)
    for mutation, row in written:
        fate = "set aside" if row in found or mutation.where.partition(".")[0] in found else "tolerated"
        report.outcomes.append(Outcome(mutation, fate))


async def _inspected(store: Storage) -> set[str]:
    """Inspect everything; gives the ids and the tables of what was set aside."""
    quiet = 0
    while quiet < 3:
        quiet = 0 if await store.inspect(10_000) else quiet + 1
    rows = await store.unreadable(limit=1_000_000)
    return {row.id for row in rows} | {row.where for row in rows if row.where != "jobs"}


async def _all_ended(store: Storage, jobs: Jobs, spoiled: set[str]) -> None:
    """Every job that was not spoiled, and does not wait for one that was, has succeeded."""
    waits_for = {child.id: parent.id for parent, child in zip(jobs.parents, jobs.followers, strict=True)}
    wanted = [id for id in jobs.run_to_their_end() if id not in spoiled and waits_for.get(id) not in spoiled]
    came_back = [job.id for job in (*jobs.held, *jobs.held_limited) if job.id not in spoiled]
    until = monotonic() + ENDS_WITHIN
    left = await _not_yet(store, wanted, came_back)
    while left and monotonic() < until:
        await asyncio.sleep(0.05)
        await store.inspect(500)  # as upkeep does, only sooner
        left = await _not_yet(store, wanted, came_back)
    assert not left, f"{len(left)} jobs that were not spoiled have not ended: {left[:5]}"
    for record in await _records(store, wanted):
        assert record is not None, "a job that was not spoiled is gone"
        assert record.state is State.SUCCEEDED, (
            f"job {record.id} was not spoiled and is {record.state}: {record.reason}"
        )


async def _not_yet(store: Storage, wanted: Sequence[str], came_back: Sequence[str]) -> list[tuple[str, object]]:
    """Those that have not ended, or are still held by the worker that is gone."""
    ended = [record and record.state in FINAL for record in await _records(store, wanted)]
    back = [record and record.leased_by != GONE for record in await _records(store, came_back)]
    left = [id for id, done in zip([*wanted, *came_back], [*ended, *back], strict=True) if not done]
    return [
        (id, record and (record.state, record.queue, record.reason))
        for id, record in zip(left, await _records(store, left), strict=True)
    ]


async def _records(store: Storage, ids: Sequence[str]) -> list[Record | None]:
    found: list[Record | None] = []
    for begin in range(0, len(ids), store.chunk):
        found += await store.get(ids[begin : begin + store.chunk])
    return found


async def look_at_everything(app: Perdure, ids: Sequence[str]) -> None:
    """Every listing; errors of our own are allowed, others are not."""

    async def listed() -> None:
        cursor = None
        while True:
            page = await app.jobs.find(limit=500, cursor=cursor)
            cursor = page.cursor
            if cursor is None:
                return

    looks = (
        listed,
        lambda: app.dead.find(limit=500),
        lambda: app.jobs.find(state=State.RUNNING),
        lambda: app.jobs.find(tag="a"),
        lambda: app.jobs.find(text="a"),
        lambda: app.jobs.find(tenant="t"),
        lambda: app.jobs.count(),
        app.queues.list,
        app.workers.list,
        app.schedules.list,
    )
    for look in looks:
        try:
            await look()
        except PerdureError:
            continue
    for id in ids[::7]:
        try:
            await app.jobs.get(id)
            await app.jobs.log(id)
        except PerdureError:
            continue
