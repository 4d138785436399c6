"""Right uses: a type checker finds nothing to say. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from perdure import (
    ANY,
    PROVIDED,
    Backoff,
    Call,
    Context,
    Continue,
    Dead,
    Item,
    Job,
    JobDead,
    JobHandle,
    Limit,
    Loss,
    Outcome,
    Page,
    Perdure,
    Registry,
    Retention,
    Retry,
    ScheduleInfo,
    Skip,
    Snooze,
    State,
    Task,
    Thresholds,
    Unique,
    WorkerPool,
    WorkerSpec,
    chain,
    graph,
    group,
)

app = Perdure(
    "memory://",
    imports=["shop.tasks"],
    durability="full",
    migrate=False,
    clock=None,
    thresholds=Thresholds(depth=5, age=timedelta(hours=1)),
    max_attempts=3,
    backoff=Backoff.exponential(1.0, jitter=timedelta(seconds=1)),
)
tasks = Registry(prefix="billing.", queue="billing")
app.include(tasks, prefix="x.")


@dataclass
class Receipt:
    cents: int


@app.task
async def bare(to: str, subject: str = "") -> str:
    return to + subject


@app.task(name="send", aliases=["old"], queue="mail", retry_on=(OSError, ValueError), run_in="loop", critical=True)
async def with_context(ctx: Context, to: str, *rest: int, loud: bool = False) -> Receipt:
    await ctx.progress({"percent": 5})
    await ctx.log("line")
    tx = await ctx.transaction()
    assert_type(await ctx.lost.wait(), Loss)
    await tx.execute("select ?", (1,))
    await bare.using(connection=tx).enqueue("x")
    if loud:
        raise Retry(30)
    if rest:
        raise Snooze(at=datetime.now(UTC))
    raise Skip("done", result=1) if to else Dead("bad address")


@app.task
def blocking(ctx: Context, n: int) -> int:
    ctx.sync.progress(n)
    ctx.sync.log("line")
    rows = ctx.sync.transaction().sync.execute("select 1")
    return len(rows) + n


@app.task
def unannotated(n, m=1):  # type: ignore[no-untyped-def]
    return n


@tasks.task(unique=Unique(scope="window", window=60), retention=Retention.keep(last=100))
async def charge(cents: int) -> None: ...


class Pool: ...


@asynccontextmanager
async def make_pool() -> AsyncIterator[Pool]:
    yield Pool()


async def pool_later() -> Pool:
    return Pool()


app.provide(Pool, Pool)
app.provide(Pool, make_pool, scope="job")
tasks.provide(Pool, pool_later)


@app.middleware
async def trace(ctx: Context, call_next: Callable[[], Awaitable[object]]) -> object:
    assert_type(ctx.get(Pool), Pool)
    return await call_next()


@app.task
async def injected(number: int, pool: Pool = PROVIDED) -> int:
    return number


@app.batch_task(name="embed", size=32, wait=timedelta(milliseconds=50), queue="gpu")
async def embed(items: list[Item[Receipt]]) -> list[list[float]]:
    await items[0].progress(5)
    await items[0].retry(30, reason="busy")
    items[0].sync.succeed()
    return [[float(item.args.cents)] for item in items]


@app.batch_task(size=8)
def deliver(items: list[Item[str]], pool: Pool = PROVIDED) -> None:
    for item in items:
        item.sync.skip(item.args)
        item.sync.progress(5)


class Service:
    async def method(self, a: int) -> list[str]:
        return [str(a)]


bound = app.task(name="method")(Service().method)


async def main() -> None:
    job = await bare.enqueue("a", subject="b")
    assert_type(job, JobHandle[str])
    assert_type(await job.result(timeout=5), str)
    assert_type(await job.refresh(), Job)
    assert_type(await job.cancel(), bool)
    assert_type(job.id, UUID)
    async for seen in job.watch(timeout=timedelta(seconds=5)):
        assert_type(seen, Job)
        assert_type(seen.state, State)
    assert_type(await with_context.enqueue("a", 1, 2, loud=True), JobHandle[Receipt])
    assert_type(await blocking.enqueue(1), JobHandle[int])
    assert_type(await bound.enqueue(1), JobHandle[list[str]])
    assert_type(await charge.enqueue(1), JobHandle[None])
    assert_type(await injected.enqueue(1), JobHandle[int])
    assert_type(await embed.enqueue(Receipt(1)), JobHandle[list[float]])
    assert_type(await deliver.enqueue("x"), JobHandle[None])
    assert_type(await app.enqueue([embed.call(Receipt(1))]), list[JobHandle[list[float]]])
    await unannotated.enqueue("anything")
    assert_type(bare.call("a"), Call[str])
    assert_type(await bare.run("a"), str)
    assert_type(bare.handle("x"), JobHandle[str])
    assert_type(await app.enqueue(bare.call("a")), JobHandle[str])
    assert_type(await app.enqueue([bare.call("a"), bare.call("b")]), list[JobHandle[str]])
    await app.enqueue((blocking.call(n) for n in range(3)), connection=None)
    later = bare.using(
        delay=60,
        priority=9,
        queue="bulk",
        key="k",
        tenant="acme/main",
        routing_key="vector",
        unique=Unique("event-1"),
        tags=["x"],
        meta={"request": "1"},
        max_attempts=None,
        timeout=timedelta(seconds=5),
        expires=3600,
        backoff=Backoff.fixed(60),
        retention=Retention.delete(),
    )
    assert_type(await later.enqueue("a"), JobHandle[str])
    assert_type(await app.jobs.get(job.id), Job | None)
    assert_type(await app.jobs.find(state=[State.DEAD], routing_key=ANY, limit=5), Page[Job])
    assert_type(await app.jobs.count(task="x", before=datetime.now(UTC)), int)
    assert_type(await app.jobs.cancel(job, job.id, "x"), int)
    assert_type(await app.jobs.log(job), tuple[str, ...])
    assert_type(await app.dead.retry_all(task="x"), int)
    await app.dead.export("file.jsonl", queue="q")
    await app.queues.configure("q", max_depth=5, on_full="drop", drop_below=0)
    for queue in await app.queues.list():
        assert_type(queue.oldest, float | None)
    await app.signal("a", "b")
    async with app.worker(
        queues=["a"], tasks=["x", bare], routing_key=None, concurrency=5, batch_size={"embed": 64}, grace=1
    ) as worker:
        await worker.stop()
    async with app.claim(tasks=["embed", bare], routing_key=None, limit=32, max_wait=5.0, lease=60) as items:
        assert_type(items, list[Item[Any]])
        await items[0].succeed(1)
    async with WorkerPool(app, [WorkerSpec(tasks=[bare], routing_key="vector"), {"queues": ["a"]}]) as pool:
        await pool.stop()
    try:
        await job.result()
    except JobDead as error:
        assert_type(error.job, Job)
    async with app:
        pass


@app.schedule("0 */15 * * * *", timezone="Europe/Berlin", max_runs=5, missed="once", overlap="skip")
@app.schedule("@daily", name="daily", start=datetime.now(UTC), end=None)
@app.task
async def recurring(days: int = 30) -> int:
    return days


number_of_days: Call[int] = recurring.call()
app.schedule("0 3 * * *", recurring.call(7), name="nightly", missed="all")
tasks.schedule("@hourly", bare.call("x"), name="hourly")


async def schedules() -> None:
    await app.schedules.put("x", "@daily", bare.call("a"), timezone="UTC", start=datetime.now(UTC), overlap="skip")
    await app.schedules.reschedule("x", "@hourly")
    await app.schedules.pause("x")
    await app.schedules.resume("x")
    await app.schedules.remove("x")
    assert_type((await app.schedules.run_now("x")).id, UUID)
    assert_type(await app.schedules.list(), tuple[ScheduleInfo, ...])
    assert_type(await app.schedules.preview("x", 3), tuple[datetime, ...])
    assert_type(app.schedules.sync.preview("x"), tuple[datetime, ...])
    app.schedules.sync.put("x", "@daily", bare.call("a"))


@app.task
async def length(word: str) -> int:
    return len(word)


@app.task(limit=[Limit(max_running=2), Limit(rate=(5, timedelta(seconds=1)), per="tenant")], concurrency=3)
async def total(numbers: list[int]) -> float:
    return sum(numbers)


@app.task
async def going_on(ctx: Context, word: str) -> int:
    assert_type(await ctx.step("a", length.run, word), int)
    assert_type(await ctx.step("b", len, word), int)
    await ctx.sleep(timedelta(hours=1))
    await ctx.wait_for("approved", timeout=5)
    ctx.on_dead(bare.call("x"))
    return Continue(bare.call(word).then(length))


@app.task
async def goes_on_with_a_group(word: str) -> list[str]:
    return Continue(group(bare.call(word), bare.call(word)))


@app.subscribe("created", routing_key=None)
@app.subscribe("created", routing_key="x")
@app.task
async def heard(event: Receipt) -> None: ...


async def flows() -> None:
    flow = bare.call("a").then(length)
    assert_type(await app.enqueue(flow), JobHandle[int])
    assert_type(await app.enqueue(group(length.call("a"), length.call("b"))), JobHandle[list[int]])
    assert_type(await app.enqueue(group(length.call("a"), length.call("b")).then(total)), JobHandle[float])
    assert_type(await app.enqueue(chain(bare.call("a"), length.call("b"), total.call([1]))), JobHandle[float])
    g = graph()
    first = g.add(bare.call("a"))
    g.add(length.call("b"), after=[first])
    assert_type(len(await app.enqueue(g)), int)
    job = await bare.using(after=[first_job := await bare.enqueue("a")], run_when="finished").enqueue("b")
    assert_type(first_job, JobHandle[str])
    await app.jobs.complete(job, "done")
    await app.jobs.answer(job.id, "approved", {"by": "x"})
    await app.jobs.delete(job, cascade=True)
    assert_type(len(await app.publish("created", Receipt(1), routing_key="x")), int)
    await app.queues.configure("q", fair=True, weights={"acme": 2})


def blocking_forms() -> None:
    job = bare.sync.enqueue("a", subject="b")
    assert_type(job, JobHandle[str])
    assert_type(job.sync.result(timeout=5), str)
    for seen in job.sync.watch():
        assert_type(seen, Job)
    assert_type(app.sync.enqueue(blocking.call(1)), JobHandle[int])
    assert_type(app.sync.enqueue([blocking.call(1)]), list[JobHandle[int]])
    assert_type(app.jobs.sync.get(job.id), Job | None)
    assert_type(app.jobs.sync.find(task="x"), Page[Job])
    with app.sync.claim(tasks=["embed"]) as items:
        items[0].sync.succeed(1)
    with app.sync:
        pass


def library(task: Task[[int], str], handle: JobHandle[object]) -> Callable[[], Outcome]:
    task.sync.enqueue(1)
    return lambda: Retry()


wider: JobHandle[object] = bare.sync.enqueue("a")
