"""A kv entry that cannot be read stops nothing but what it says itself."""

from __future__ import annotations

import pytest

from perdure import Perdure, State
from perdure.core.ids import new_stamp
from perdure.flow.compensation import undo_write
from perdure.flow.subscriptions import KIND as SUBSCRIPTION
from perdure.flow.subscriptions import SEPARATOR
from perdure.schedules import firing
from perdure.schedules.schedule import KIND as SCHEDULE
from perdure.schedules.schedule import Schedule, text_of
from perdure.storage.contract import Claim, Filter, KvWrite, Want, WorkerRow
from perdure.testing.conformance.tools import job
from perdure.upkeep.reap import reap
from tests.support.addresses import OF_EACH_KIND, address

FOR_EVER = 10**15
STORES = ["memory", "sqlite", *OF_EACH_KIND]
BAD = ["", "nonsense", '{"a": 1}', "[1, 2]", '{"a": [1,', "[" * 5_000 + "]" * 5_000]


@pytest.mark.parametrize("store", STORES)
async def test_jobs_die_without_the_call_that_cannot_be_read(store, tmp_path):
    """The other calls that undo it are stored, and the jobs of the same batch are reaped."""
    async with Perdure(address(store, tmp_path)) as app:
        storage = await app._runtime.storage()
        dying = [job(task="dies", lease=1, max_attempts=1) for _ in range(3)]
        await storage.enqueue(dying)
        for number, text in enumerate(BAD):
            await storage.kv_write([KvWrite("undo", f"{dying[1].id}/{number}", text, job=dying[1].id)])
        await storage.kv_write([undo_write(each.id, job(task="alert")) for each in dying])
        for number in range(3):  # one each: only a job that ran alone is charged
            await storage.claim(Claim(f"killed {number}", new_stamp(), (Want(1),)))
        lapsed = []
        while len(lapsed) < 3:  # their lease is a millionth of a second
            lapsed = await storage.lapsed(10, FOR_EVER)
        assert await reap(storage, lapsed) == 3
        records = await storage.get([each.id for each in dying])
        alerts, _ = await storage.find(Filter(task="alert"), 10, None)
    assert [record.state for record in records] == [State.DEAD] * 3
    assert len(alerts) == 3


@pytest.mark.parametrize("store", STORES)
async def test_events_reach_those_whose_subscription_can_be_read(store, tmp_path):
    app = Perdure(address(store, tmp_path))

    @app.subscribe("news")
    @app.task
    async def read_news(event: int) -> None: ...

    async with app:
        storage = await app._runtime.storage()
        names = ["", "no separator", SEPARATOR * 5, f"news{SEPARATOR}other{SEPARATOR}any", "x" * 300]
        await storage.kv_write([KvWrite(SUBSCRIPTION, name, text) for name in names for text in BAD[-1:]])
        await storage.kv_write(
            [KvWrite(SUBSCRIPTION, f"{number}{SEPARATOR}t", text) for number, text in enumerate(BAD)]
        )
        assert len(await app.publish("news", 1)) == 1


@pytest.mark.parametrize("store", STORES)
async def test_schedules_fire_beside_one_that_cannot_be_read(store, tmp_path):
    async with Perdure(address(store, tmp_path)) as app:
        storage = await app._runtime.storage()
        now = await storage.now()
        tick = job(task="tick")
        sound = Schedule(cron="* * * * * *", job=tick, next=now)
        odd = [
            Schedule(cron="* * * * * *", job=job(task="tick", meta='["no object"]'), next=now),
            Schedule(cron="* * * * * *", job=job(task="tick", meta="nonsense"), next=now),
            Schedule(cron="nonsense", job=tick, next=now),
            Schedule(cron="* * * * * *", timezone="Nowhere/At all", job=tick, next=now),
            Schedule(cron="* * * * * *", job=tick, next=-(1 << 62)),
            Schedule(cron="* * * * * *", job=tick, next=-(1 << 62), missed="once"),
            Schedule(cron="* * * * * *", job=tick, next=now, start=1 << 62),
            Schedule(cron="* * * * * *", job=tick, next=-(1 << 62), missed="all"),
            Schedule(cron="* * * * * *", job=tick, next=now, declared="hash"),
        ]
        texts = [*BAD, *(text_of(each) for each in odd)]
        await storage.heartbeat(WorkerRow("odd", now, 0, 0, "[1]"))
        await storage.kv_write([KvWrite(SCHEDULE, f"a{n}", text, due_at=1) for n, text in enumerate(texts)])
        await storage.kv_write([KvWrite(SCHEDULE, "sound", text_of(sound), due_at=now)])
        await firing.fire(storage, now, set())
        (row,) = await storage.kv_read(SCHEDULE, ["sound"])
        await app.schedules.list()
    assert row.version == 2, "it has fired"
