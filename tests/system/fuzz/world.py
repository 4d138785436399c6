"""What the store holds when it is spoiled: jobs in every state, and a row in every table."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from time import monotonic

import msgspec

from perdure import Context, Limit, Perdure, State
from perdure.core.backoff import DEFAULT_BACKOFF
from perdure.core.clock import SECOND
from perdure.core.ids import new_id, new_stamp
from perdure.core.lifecycle import Died, Succeeded, decide
from perdure.core.record import NewJob, Record
from perdure.core.retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION
from perdure.flow.compensation import undo_write
from perdure.flow.steps import ANSWER, STEP, name_of
from perdure.flow.subscriptions import KIND as SUBSCRIPTION
from perdure.flow.subscriptions import Subscription
from perdure.storage.contract import Claim, KvWrite, Note, QueueSettings, Storage, Want, WorkerRow
from perdure.testing.conformance.tools import fault

from .target import Target

LEASE = SECOND  # of jobs that a worker which is gone holds
GONE = "gone-worker"
PAUSED = ("work", "fair")  # queues whose jobs start only after the mutations
WORKED_ON = ("work", "fair", "open", "held", "full", "room", "canary")


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


def limits(*entries: tuple[str, int | None, int | None, int | None]) -> str:
    return json.dumps(entries)


RATED = limits(("fuzz", 500, 1000, SECOND))
SEVERAL = limits(("fuzz one", 500, None, None), ("fuzz two", 500, None, None))
RICH: dict[str, object] = {
    "key": "k",
    "tenant": "t/1",
    "tags": '["a","b"]',
    "meta": '{"m":"1"}',
    "expires": 3600 * SECOND,
}


class Jobs:
    """The jobs of one round, by how they stand when they are spoiled."""

    def __init__(self, number: int) -> None:
        each = range(number)
        few = range(max(2, number // 4))
        self.ready = [new_job() for _ in each]
        self.rich = [new_job(**RICH, unique_key=new_id(), unique_scope="active") for _ in each]
        self.kept = [new_job(unique_key=new_id(), unique_scope="window", unique_window=99 * SECOND) for _ in each]
        self.fair = [new_job(queue="fair", tenant=f"t{n % 3}") for n in each]
        self.delayed = [new_job(delay=SECOND // 2) for _ in each]
        self.later = [new_job(delay=3600 * SECOND, unique_key=new_id(), unique_scope="waiting") for _ in each]
        self.limited = [new_job(task="bounded", limits=RATED) for _ in each]
        self.limited_twice = [new_job(task="bounded", limits=SEVERAL) for _ in few]
        self.held = [new_job(queue="held") for _ in each]
        self.held_limited = [new_job(queue="held", limits=limits_of) for limits_of in (RATED, SEVERAL) for _ in few]
        # two jobs for each key: one is held by the worker that is gone, the other waits for it
        self.full = _pairs(few, "full", ("{}", 1, None, None))
        self.full_twice = _pairs(few, "full", ("{} a", 1, None, None), ("{} b", 1, None, None))
        # the one that was held has ended, and no claim has looked at the other yet
        self.room = _pairs(few, "room", ("{}", 1, None, None))
        self.parents = [new_job() for _ in each]
        self.followers = [new_job(after=json.dumps([parent.id]), waits=1) for parent in self.parents]
        self.unresolved_parents = [new_job(queue="open") for _ in few]  # a queue that is not paused
        self.unresolved = [new_job(after=json.dumps([parent.id]), waits=1) for parent in self.unresolved_parents]
        self.stepping = [new_job(task="stepping") for _ in few]
        self.answered = [new_job(task="answered") for _ in few]
        self.dying = [new_job(task="dying", max_attempts=1) for _ in few]
        self.succeeded = [new_job(queue="done") for _ in each]
        self.dead = [new_job(queue="done") for _ in each]
        self.needs: dict[str, set[str]] = {}  # a job, and those without which it cannot end
        for parents, children in ((self.parents, self.followers), (self.unresolved_parents, self.unresolved)):
            self.needs |= {child.id: {parent.id} for parent, child in zip(parents, children, strict=True)}

    def kinds(self) -> list[list[NewJob]]:
        return [value for value in vars(self).values() if isinstance(value, list)]

    def all(self) -> list[NewJob]:
        return [job for jobs in self.kinds() for job in jobs]

    def held_by_the_gone(self) -> list[str]:
        return [job.id for job in (*self.held, *self.held_limited)]

    def ends(self) -> dict[str, State]:
        """How those end that end by themselves, unless they are spoiled or need one that is. Those that were held by a
        worker which is gone come back, and then run alone, one after the other: that would take too long."""
        stay = {job.id for job in (*self.later, *self.succeeded, *self.dead, *self.held, *self.held_limited)}
        stay |= {job for needed in self.needs.values() for job in needed if job in self._keys_held}
        dying = {job.id for job in self.dying}
        return {job.id: State.DEAD if job.id in dying else State.SUCCEEDED for job in self.all() if job.id not in stay}

    _keys_held: frozenset[str] = frozenset()

    def note_held(self, claimed: Iterable[Record]) -> None:
        """The other job of each key that these hold waits for them."""
        held = {record.id: record.limits for record in claimed}
        by_limits = {limits: id for id, limits in held.items()}
        for job in (*self.full, *self.full_twice, *self.room):
            if job.id not in held and job.limits in by_limits:
                self.needs.setdefault(job.id, set()).add(by_limits[job.limits])
        self._keys_held |= frozenset(held)


def _pairs(each: Iterable[int], queue: str, *entries: tuple[str, int | None, int | None, int | None]) -> list[NewJob]:
    jobs = []
    for _ in each:
        key = new_id()
        both = limits(*((name.format(key), *rest) for name, *rest in entries))  # type: ignore[misc]
        jobs += [new_job(task="bounded", queue=queue, limits=both) for _ in range(2)]
    return jobs


# ---- filling the store -----------------------------------------------------------------------------
async def fill(store: Storage, target: Target, number: int) -> Jobs:
    """Put jobs in every state on record, while no worker runs."""
    jobs = Jobs(number)
    for queue in PAUSED:
        await store.pause(queue, True)
    await store.configure(QueueSettings("fair", max_depth=100_000, fair=True, weights='{"t1":2}'))
    parked = (jobs.limited, jobs.limited_twice)  # they come last: a claim would take away the word of them
    for kind in jobs.kinds():
        if kind is not jobs.unresolved and kind not in parked:
            await _enqueue(store, kind)
    await _claim(store, len(jobs.held), "held")
    await _claim(store, len(jobs.held_limited), "held", limited=True)
    await _write_kv(store, jobs)
    await _end(store, jobs)
    await _hold_keys(store, jobs)
    for kind in parked:
        await _enqueue(store, kind)
    await store.heartbeat(
        WorkerRow(GONE, await store.now(), 0, 3, '{"host":"h","pid":1,"queues":["held"],"tasks":["work"]}')
    )
    await target.seed(store, jobs.unresolved, [job.id for job in jobs.unresolved_parents])
    return jobs


async def _enqueue(store: Storage, jobs: Sequence[NewJob]) -> None:
    for begin in range(0, len(jobs), store.chunk):
        await store.enqueue(jobs[begin : begin + store.chunk])


async def _claim(store: Storage, number: int, queue: str, *, limited: bool = False) -> list[Record]:
    """Hold jobs under the name of a worker that is gone."""
    claimed: list[Record] = []
    for _ in range(20):
        if len(claimed) >= number:
            break
        want = Want(number - len(claimed), queues=(queue,), limited=limited)
        claimed += await store.claim(Claim(GONE, new_stamp(), (want,)))
    return claimed


async def _end(store: Storage, jobs: Jobs) -> None:
    """Let jobs end, each with progress, a log and a result or an error."""
    ended = await _claim(store, len(jobs.succeeded) + len(jobs.dead), "done")
    await store.note([Note(record.hold, '{"done":1}', ("a line", "another")) for record in ended])
    died = {job.id for job in jobs.dead}
    await store.apply(
        [decide(record, Died("hopeless", fault()) if record.id in died else Succeeded('{"r":1}')) for record in ended]
    )


async def _hold_keys(store: Storage, jobs: Jobs) -> None:
    """Use up keys, and give some of them up again."""
    room = await _claim(store, len(jobs.room) // 2, "room", limited=True)
    jobs.note_held(room)
    full = (len(jobs.full) + len(jobs.full_twice)) // 2
    jobs.note_held(await _claim(store, full - 1, "full", limited=True))
    await store.apply([decide(record, Succeeded(None)) for record in room])
    jobs.note_held(await _claim(store, 1, "full", limited=True))  # it hears of the room, and takes no job of that queue


async def _write_kv(store: Storage, jobs: Jobs) -> None:
    """Results of steps, answers, calls that undo a job, and subscriptions of another app."""
    now = await store.now()
    writes = []
    for job in jobs.stepping:
        writes.append(KvWrite(STEP, name_of(job.id, "count"), "1", job=job.id))
        writes.append(KvWrite(STEP, name_of(job.id, "\x1fsleep 1"), str(now), job=job.id))
    writes += [KvWrite(ANSWER, name_of(job.id, "yes"), '"a"', due_at=now, job=job.id) for job in jobs.answered]
    writes += [undo_write(job.id, new_job(task="work")) for job in jobs.dying]
    for _ in jobs.stepping:
        other = Subscription("elsewhere", f"other {new_id()}", "event", new_job())
        writes.append(KvWrite(SUBSCRIPTION, other.name, msgspec.json.encode(other).decode()))
    writes += [KvWrite("queue", f"old {new_id()}", "{}", version=0) for _ in jobs.stepping]
    await store.kv_write(writes)


# ---- the app ---------------------------------------------------------------------------------------
class Scene:
    """The app under the fuzzer: tasks for jobs of every kind, a canary, and what schedules and events start."""

    def __init__(self, url: str) -> None:
        self.app = app = Perdure(url)
        self.runs: Counter[str] = Counter()  # by job, how often a handler has begun

        @app.task(name="work", queue="work")
        async def work(ctx: Context) -> None:
            self.runs[str(ctx.job.id)] += 1

        @app.task(name="bounded", queue="work", limit=Limit(max_running=50))  # so that the worker asks for such jobs
        async def bounded(ctx: Context) -> None:
            self.runs[str(ctx.job.id)] += 1

        @app.task(name="stepping", queue="work")
        async def stepping(ctx: Context) -> int:
            self.runs[str(ctx.job.id)] += 1
            count = await ctx.step("count", one)
            await ctx.sleep(0)
            return count

        @app.task(name="answered", queue="work")
        async def answered(ctx: Context) -> None:
            self.runs[str(ctx.job.id)] += 1
            await ctx.wait_for("yes")

        @app.task(name="dying", queue="work")
        async def dying(ctx: Context) -> None:
            self.runs[str(ctx.job.id)] += 1
            raise ValueError("as it must")

        @app.task(name="canary", queue="canary", max_attempts=1)
        async def canary() -> int:
            return 1

        @app.task(name="tick", queue="canary")
        async def tick(name: str) -> None:
            self._fired.setdefault(name, asyncio.Event()).set()

        @app.subscribe("news")
        @app.task(name="event", queue="canary")
        async def event(news: int) -> None: ...

        self._fired: dict[str, asyncio.Event] = {}
        self._canary = canary
        self._tick = tick

    async def canary(self) -> float:
        """Seconds that a job takes from its enqueue to its result."""
        began = monotonic()
        handle = await self._canary.enqueue()
        assert await handle.result(timeout=60) == 1
        return monotonic() - began

    async def put_schedules(self, names: Iterable[str], cron: str = "* * * * *") -> None:
        for name in names:
            await self.app.schedules.put(name, cron, self._tick.call(name))

    async def fire_schedule(self, name: str, within: float) -> None:
        """A schedule that nobody has spoiled fires."""
        await self.put_schedules([name], "* * * * * *")
        await asyncio.wait_for(self._fired.setdefault(name, asyncio.Event()).wait(), within)
        await self.app.schedules.remove(name)


def one() -> int:
    return 1
