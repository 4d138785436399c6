"""Events: one job per subscription, whoever publishes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast import ANY, Holdfast, InvalidCall, Registry

from ..addresses import address


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
    listener, speaker = Holdfast(url), Holdfast(url)
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
            speaker._client._heard.clear()
            assert await speaker.publish("saved", {"id": 6}) == []


async def test_what_cannot_be_published_or_subscribed(app):
    @app.task
    async def nothing() -> None: ...

    with pytest.raises(InvalidCall, match="takes no argument"):
        app.subscribe("t")(nothing)
    with pytest.raises(InvalidCall, match="on top of @task"):
        app.subscribe("t")(lambda event: None)
    with pytest.raises(InvalidCall, match="topic"):
        app.subscribe("")
    async with app:
        with pytest.raises(InvalidCall, match="event"):
            await app.publish("t", object())
        with pytest.raises(InvalidCall, match="routing_key"):
            await app.publish("t", {}, routing_key=ANY)  # that is for those who listen
