"""Who carries exchanges and runs what they bring: no errand is lost, and no more handlers run than there are slots."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Context, Perdure, State
from perdure.worker.claiming.claim_loop import ClaimLoop
from perdure.worker.claiming.exchange_tasks import ExchangeTasks
from tests.support.waiting import eventually, stays


class House:
    """Messengers whose errands end when they are told to."""

    def __init__(self) -> None:
        self.carried: list[object] = []
        self.undone: list[object] = []
        self.back: list[BaseException | None] = []
        self.home = asyncio.Event()
        self.home.set()
        self.over = asyncio.Event()
        self.messengers = ExchangeTasks(2, self._carry, self.back.append, self.undone.append, self._serve)

    async def _carry(self, errand):
        self.carried.append(errand)
        await self.over.wait()
        if errand == "bad":
            raise ValueError("no way")

    async def _serve(self, task):
        await self.home.wait()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_errands_are_carried_side_by_side_and_messengers_go_again():
    house = House()
    for errand in ("a", "b", "c"):
        house.messengers.send(errand)
    assert house.messengers.away == 3
    house.over.set()
    await turns()
    assert (house.carried, house.back, house.messengers.away) == (["a", "b", "c"], [None] * 3, 0)
    messengers = {task for task in asyncio.all_tasks() if task.get_name() == "perdure messenger"}
    assert len(messengers) == 2, "the third is not needed"
    house.messengers.send("d")
    house.messengers.send("bad")
    await turns()
    assert [type(error) for error in house.back[3:]] == [type(None), ValueError]
    assert {task for task in asyncio.all_tasks() if task.get_name() == "perdure messenger"} < messengers
    await asyncio.wait(house.messengers.dismiss())


async def test_an_errand_that_nobody_has_begun_goes_back():
    house = House()
    house.over.set()
    house.messengers.send("first")
    await turns()
    house.messengers.send("for an idle one")
    house.messengers.send("for a new one")
    await asyncio.wait(house.messengers.dismiss())
    await turns()
    assert house.carried == ["first"]
    assert sorted(house.undone) == ["for a new one", "for an idle one"]
    assert house.messengers.away == 0
    house.messengers.send("again")
    await turns()
    assert house.carried == ["first", "again"]
    await asyncio.wait(house.messengers.dismiss())


async def test_one_that_runs_jobs_is_not_stopped_with_the_others():
    house = House()
    house.over.set()
    house.home.clear()
    house.messengers.send("a")
    await turns()
    assert (house.messengers.away, house.messengers.dismiss()) == (0, [])
    (working,) = (task for task in asyncio.all_tasks() if task.get_name() == "perdure messenger")
    house.home.set()
    await asyncio.wait_for(working, 20)


# ---- jobs in messengers --------------------------------------------------------------------------------
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_handlers_at_once_than_slots(concurrency):
    app = Perdure("memory://")
    now = most = 0

    @app.task
    async def work(seconds: float) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(seconds)
        now -= 1

    async with app, app.worker(concurrency=concurrency) as worker:
        handles = []
        for number in range(40):  # single ones to an idle worker, then many to a busy one
            handles.append(await work.enqueue(0.001 * (number % 3)))
            if number < 10:
                await handles[-1].result(timeout=10)
        for handle in handles:
            await handle.result(timeout=10)
        assert len(worker._running._slots._tasks) <= concurrency
    assert most == concurrency


async def test_a_job_in_a_messenger_lives_through_a_new_start_of_the_pump():
    """It is cancelled, told so, and nothing else ends with it."""
    app = Perdure("memory://")
    told: list[object] = []
    begun = asyncio.Event()

    @app.task
    async def quick(n: int) -> int:
        return n

    @app.task
    async def slow(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append(ctx.lost.reason)

    async with app, app.worker(concurrency=2) as worker:
        running = worker._running
        for n in range(3):
            assert await (await quick.enqueue(n)).result(timeout=10) == n
        job = await slow.enqueue()
        await asyncio.wait_for(begun.wait(), 10)
        assert running._slots._guests, "the messenger that brought it runs it"
        running._asking[1].start_anew()
        await stays(lambda: app.jobs.count(state=State.RUNNING), 0.2)
        for n in range(3):
            assert await (await quick.enqueue(n)).result(timeout=10) == n
        assert await job.cancel()
        async with asyncio.timeout(10):
            while running._slots._guests:
                await asyncio.sleep(0.01)
        assert [str(reason) for reason in told] == ["cancelled"]
        assert await (await quick.enqueue(7)).result(timeout=10) == 7


async def test_a_fault_of_ours_in_a_signal_is_the_pumps(monkeypatch, caplog):
    """Whoever brings the signal does not suffer from it, and the pump begins anew."""
    app = Perdure("memory://")

    @app.task
    async def work(n: int) -> int:
        return n

    async with app, app.worker(poll=0.2):
        assert await (await work.enqueue(1)).result(timeout=10) == 1
        await asyncio.sleep(0.05)
        with monkeypatch.context() as patched:
            patched.setattr(ClaimLoop, "_take_foreseen", lambda self: 1 / 0)
            job = await work.enqueue(2)
            await eventually(lambda: "ZeroDivisionError" in caplog.text)
        assert await job.result(timeout=10) == 2
    assert "ZeroDivisionError" in caplog.text
