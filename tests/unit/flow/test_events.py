"""Events: one job per subscription, whoever publishes."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass

import psycopg
import pytest
from pymongo import AsyncMongoClient

from perdure import ANY, Context, Dead, InvalidCall, JobDead, Perdure, Registry, Unique
from tests.support.addresses import address


@dataclass
class Record:
    id: int


async def test_each_subscription_gets_its_job(app):
    seen: list[tuple[str, int]] = []

    @app.subscribe("record.created", routing_key="vector")
    @app.task
    async def index(event: Record) -> None:
        seen.append(("index", event.id))

    @app.subscribe("record.created", routing_key=None)
    @app.task
    async def unrouted(event: Record) -> None:
        seen.append(("unrouted", event.id))

    @app.subscribe("record.deleted")
    @app.subscribe("record.created", routing_key=ANY)
    @app.task(queue="audit")
    async def audit(event: dict[str, int]) -> None:
        seen.append(("audit", event["id"]))

    async with app, app.worker():
        jobs = await app.publish("record.created", Record(1), routing_key="vector")
        jobs += await app.publish("record.created", {"id": 2})
        jobs += await app.publish("record.deleted", {"id": 3})
        for job in jobs:
            await job.result(timeout=20)
        assert await app.publish("nobody.listens", 1) == []
        routed = await app.jobs.find(routing_key="vector")
    assert sorted(seen) == [("audit", 1), ("audit", 2), ("audit", 3), ("index", 1), ("unrouted", 2)]
    assert {job.task for job in routed.items} == {"index", "audit"}


async def test_a_publisher_need_not_know_the_subscriber(store, tmp_path):
    if store == "memory":
        pytest.skip("memory:// is one store per app")
    url = address(store, tmp_path)
    listener, speaker = Perdure(url), Perdure(url)
    tasks = Registry(prefix="search.")

    @tasks.subscribe("saved")
    @tasks.task
    async def index(event: dict[str, int]) -> int:
        return event["id"]

    listener.include(tasks)
    async with listener, speaker:
        async with listener.worker():
            (job,) = await speaker.publish("saved", {"id": 5})
            assert await job.result(timeout=20) == 5
        index._declared.subscriptions.clear()  # the next release of the listener does not subscribe any more
        async with listener.worker():
            speaker._runtime.client.publisher.forget()
            assert await speaker.publish("saved", {"id": 6}) == []


async def test_an_event_is_published_with_the_callers_rows(store, app):
    """The first event of a process too, from inside a transaction that holds the store's lock."""
    if store in ("memory", "valkey"):
        pytest.skip("it has no transactions of callers")

    @app.subscribe("saved")
    @app.task
    async def index(event: dict[str, int]) -> int:
        return event["id"]

    async with app:
        await app.jobs.count()
        async with _rolled_back(store, app.url) as connection:
            assert len(await app.publish("saved", {"id": 1}, connection=connection)) == 1
        async with _committed(store, app.url) as connection:
            (job,) = await app.publish("saved", {"id": 2}, connection=connection)
        async with app.worker(poll=0.1):
            assert await job.result(timeout=20) == 2
        assert await app.jobs.count() == 1


async def test_a_handler_publishes_in_its_own_transaction(store, app):
    """Where no other verb is allowed: on SQLite it holds the one write lock."""
    if store == "valkey":
        pytest.skip("it has no transactions")

    @app.subscribe("saved")
    @app.task
    async def index(event: dict[str, int]) -> int:
        return event["id"]

    @app.task(max_attempts=1)
    async def save(ctx: Context, number: int) -> str:
        tx = await ctx.transaction()
        (job,) = await app.publish("saved", {"id": number}, connection=tx)
        if number < 0:
            raise Dead("undone")
        return str(job.id)

    async with app, app.worker():
        with pytest.raises(JobDead, match="undone"):
            await (await save.enqueue(-1)).result(timeout=20)
        published = index.handle(await (await save.enqueue(2)).result(timeout=20))
        assert await published.result(timeout=20) == 2
        assert await app.jobs.count(task="index") == 1


class _Undone(Exception):
    pass


@asynccontextmanager
async def _rolled_back(store, url):
    with suppress(_Undone):
        async with _committed(store, url) as connection:
            yield connection
            raise _Undone


@asynccontextmanager
async def _committed(store, url):
    """A caller's transaction that has written something."""
    if store == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("create table if not exists theirs (id integer)")
            connection.execute("insert into theirs values (1)")
            yield connection
    elif store == "postgres":
        async with await psycopg.AsyncConnection.connect(url.partition("?")[0]) as connection:
            yield connection
    else:
        async with AsyncMongoClient(url) as client, client.start_session() as session:
            async with await session.start_transaction():
                yield session


async def test_equal_events_are_one_job_where_the_task_says_so(store, tmp_path):
    if store == "memory":
        pytest.skip("memory:// is one store per app")
    url = address(store, tmp_path)
    listener, stranger = Perdure(url), Perdure(url)

    @listener.subscribe("saved")
    @listener.task(unique=Unique())
    async def index(event: dict[str, int], depth: int = 5) -> None: ...

    @listener.subscribe("saved")
    @listener.task(unique=Unique("all"))
    async def count(event: dict[str, int]) -> None: ...

    async with listener, stranger:
        first = await listener.publish("saved", {"id": 1, "size": 2})
        again = await stranger.publish("saved", {"size": 2, "id": 1})
        other = await stranger.publish("saved", {"id": 2})
    assert {job.id for job in first} == {job.id for job in again}
    assert sorted(job.duplicate for job in other) == [False, True]


async def test_what_cannot_be_published_or_subscribed(app):
    @app.task
    async def nothing() -> None: ...

    @app.task
    async def greedy(event: int, more: int) -> None: ...

    with pytest.raises(InvalidCall, match="takes no argument by its position that an event could be handed to"):
        app.subscribe("t")(nothing)
    with pytest.raises(InvalidCall, match="on top of @task"):
        app.subscribe("t")(lambda event: None)
    with pytest.raises(InvalidCall, match="topic"):
        app.subscribe("")
    async with app:
        with pytest.raises(InvalidCall, match="event"):
            await app.publish("t", object())
        with pytest.raises(InvalidCall, match="routing_key"):
            await app.publish("t", 1, routing_key=ANY)
        app.subscribe("t")(greedy)
        with pytest.raises(
            InvalidCall, match="greedy is handed the events of 't' and nothing else, and needs more too"
        ):
            await app.publish("t", 1)
