"""Planted mistakes: a type checker must find each one where it stands. Read by type checkers, never run.

Every line that ends with `# mistake` must get an error, and no other line may. basedpyright is not asked about a line that
ends with `# mypy: mistake`.
"""

from __future__ import annotations

from datetime import datetime

import perdure.testing
from perdure import (
    ANY,
    Backoff,
    Context,
    Continue,
    Item,
    JobHandle,
    Limit,
    Perdure,
    Registry,
    Retention,
    Retry,
    Snooze,
    State,
    Unique,
    WorkerPool,
    chain,
    graph,
    group,
)

app = Perdure("memory://")
tasks = Registry()


@app.task
async def send(to: str, subject: str = "") -> str:
    return to + subject


@app.task(queue="mail")
def blocking(ctx: Context, number: int, *, loud: bool = False) -> int:
    ctx.sync.progress()  # mistake
    ctx.sync.nothing_such()  # mistake
    return number


class Pool: ...


app.provide(Pool, int)  # mypy: mistake
app.provide(Pool, Pool, scope="loop")  # mistake


@app.middleware  # mistake
async def no_next(ctx: Context) -> object: ...


@app.batch_task(size=2)
async def embed(items: list[Item[str]]) -> list[int]:
    await items[0].succeed(1, 2)  # mistake
    await items[0].snooze()  # mistake
    items[0].args + 1  # mistake
    items[0].sync.dead()  # mistake
    return [1]


@app.batch_task(wait=2)  # mistake
def no_size(items: list[Item[str]]) -> None: ...


@app.batch_task(size=2)  # mistake
async def no_items(items: list[str]) -> None: ...


async def wrong_items() -> None:
    app.claim()  # mistake
    app.claim(tasks=["a"], limit="5")  # mistake
    WorkerPool(app, [{"colour": "red"}])  # mistake
    WorkerPool(app)  # mistake
    WorkerPool("memory://", [])  # mistake
    app.worker(tasks=[5])  # mistake
    await embed.enqueue(5)  # mistake
    await embed.enqueue()  # mistake
    await embed.enqueue(["a"])  # mistake
    text: str = await (await embed.enqueue("a")).result()  # mistake
    print(text)


async def wrong_arguments() -> None:
    await send.enqueue(5)  # mistake
    await send.enqueue()  # mistake
    await send.enqueue("a", "b", "c")  # mistake
    await send.enqueue("a", topic="b")  # mistake
    await send.enqueue("a", subject=5)  # mistake
    await blocking.enqueue(None, 5)  # mistake
    await blocking.enqueue("5")  # mistake
    await blocking.enqueue(5, True)  # mistake
    await send.run(5)  # mistake
    send.call(5)  # mistake
    send.sync.enqueue(5)  # mistake
    blocking.sync.enqueue()  # mistake
    await app.enqueue(send.call())  # mistake


async def wrong_results() -> None:
    job = await send.enqueue("a")
    number: int = await job.result()  # mistake
    other: JobHandle[int] = job  # mistake
    several: list[JobHandle[int]] = await app.enqueue([send.call("a")])  # mistake
    single: JobHandle[str] = await app.enqueue([send.call("a")])  # mistake
    text: str = job.sync.result()
    length: int = job.sync.result()  # mistake
    handle: JobHandle[int] = send.handle("x")  # mistake
    print(number, other, several, single, text, length, handle)


async def missing_await() -> None:
    print(send.enqueue("a").id)  # mistake
    job = await send.enqueue("a")
    job.result().upper()  # mistake
    for _ in job.watch():  # mistake
        pass
    print((await app.jobs.get(job.id)).state)  # mistake
    print(app.jobs.count() + 1)  # mistake


async def wrong_options() -> None:
    send.using(delay="5")  # mistake
    send.using(at=5)  # mistake
    send.using(colour="red")  # mistake
    send.using(unique="key")  # mistake
    send.using(backoff=5)  # mistake
    send.using(run_when="never")  # mistake
    await app.enqueue([send])  # mistake
    await app.enqueue(send.enqueue("a"))  # mistake
    await app.enqueue("send")  # mistake
    await app.jobs.find(state="dead")  # mistake
    await app.jobs.find(colour="red")  # mistake
    await app.jobs.find(routing_key=5)  # mistake
    await app.queues.configure("q", on_full="explode")  # mistake
    app.worker(concurrency="5")  # mistake
    app.worker(threads=5)  # mistake
    Unique(scope="sometimes")  # mistake
    Backoff.fixed("60")  # mistake
    Retention.keep(5)  # mistake
    Perdure(url="memory://")  # mistake
    Perdure("memory://", durability="some")  # mistake
    Registry(name="x")  # mistake
    tasks.include("x")  # mistake
    raise Retry(30, at=datetime.now())  # mistake


async def wrong_names() -> None:
    raise Snooze()  # mistake


@app.task(queue=5)  # mistake
async def bad_queue() -> None: ...


@app.task(colour="red")  # mistake
async def bad_option() -> None: ...


@app.task(retry_on="ValueError")  # mistake
async def bad_retry() -> None: ...


app.schedule("@daily")(send)  # mistake
app.schedule("@daily", send.call("a"))  # mistake
app.schedule("@daily", send, name="x")  # mistake
app.schedule("@daily", missed="twice")  # mistake
app.schedule("@daily", start="now")  # mistake


async def wrong_schedules() -> None:
    await app.schedules.put("x", "@daily", send)  # mistake
    await app.schedules.put("x", "@daily", send.call("a"), overlap="queue")  # mistake
    print(app.schedules.list()[0])  # mistake
    moments: list[str] = app.schedules.sync.preview("x")  # mistake
    print(moments)


@app.task
async def measure(word: str) -> int:
    return len(word)


@app.task(limit="100/s")  # mistake
async def bad_limit() -> None: ...


@app.subscribe("topic")  # mistake
@app.task
async def deaf() -> None: ...


@app.task
async def goes_astray() -> str:
    return Continue(measure.call("a"))  # mistake


@app.task
async def goes_on_with_a_group() -> int:
    return Continue(group(measure.call("a"), measure.call("b")))  # mistake


async def wrong_flows(ctx: Context) -> None:
    measure.call("a").then(measure)  # mistake
    measure.call("a").then(measure.call("b"))  # mistake
    group(measure.call("a")).then(measure)  # mistake
    chain(measure)  # mistake
    word: JobHandle[str] = await app.enqueue(send.call("a").then(measure))  # mistake
    graph().add(measure)  # mistake
    await ctx.step("a", len, 5)  # mistake
    number: str = await ctx.step("a", len, "b")  # mistake
    ctx.on_dead(measure)  # mistake
    Limit(per="queue", max_running=1)  # mistake
    await app.queues.configure("q", weights=[1])  # mistake
    print(word, number)


state: State = "dead"  # mistake
routing: str = ANY  # mistake
unknown = perdure.Unqiue  # mistake
unknown = perdure.testing.drian  # mistake
