"""Durable steps, sleeps, answers and compensation."""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass

import pytest

from perdure import (
    Backoff,
    Context,
    Dead,
    HoldLost,
    IllegalMove,
    InvalidCall,
    JobCancelled,
    JobDead,
    Loss,
    NotFound,
    ResultTimeout,
    State,
    StoreError,
)

SOON = Backoff.fixed(0.01)


@dataclass
class Receipt:
    number: int


async def test_a_step_runs_once_per_job(app):
    calls: list[str] = []

    async def charge(cents: int) -> Receipt:
        calls.append(f"charge {cents}")
        return Receipt(cents)

    def ship(to: str) -> str:
        calls.append(f"ship {to}")
        if calls.count(f"ship {to}") == 1:
            raise ConnectionError("no carrier")
        return to

    @app.task(backoff=SOON)
    async def order(ctx: Context) -> str:
        receipt = await ctx.step("charge", charge, 99)
        assert isinstance(receipt, Receipt)
        to = await ctx.step("ship", ship, to="Rome")
        if ctx.job.failures < 2:
            raise ValueError("late failure")
        return f"{receipt.number} {to}"

    @app.task(backoff=SOON)
    def blocking(ctx: Context) -> int:
        number = ctx.sync.step("one", lambda: calls.append("one") or 1)
        if ctx.job.failures == 0:
            raise ValueError("again")
        return number

    async with app, app.worker():
        assert await (await order.enqueue()).result(timeout=20) == "99 Rome"
        assert calls == ["charge 99", "ship Rome", "ship Rome"]
        assert await (await blocking.enqueue()).result(timeout=20) == 1
        assert calls.count("one") == 1


@pytest.mark.parametrize(("verb", "reason"), [("cancel", Loss.CANCELLED), ("delete", Loss.NOT_FOUND)])
async def test_a_step_after_the_hold_is_lost_says_why(app, verb, reason):
    reasons: list[Loss] = []

    @app.task
    def order(ctx: Context) -> None:
        try:
            ctx.sync.step("charge", lambda: getattr(app.jobs.sync, verb)(ctx.job.id))
        except HoldLost as lost:
            reasons.append(lost.reason)
            raise

    async with app:
        async with app.worker():
            job = await order.enqueue()
            with pytest.raises((JobCancelled, NotFound)):
                await job.result(timeout=20)
        assert reasons == [reason]


async def test_bad_steps(app):
    @app.task(max_attempts=1)
    async def twice(ctx: Context) -> None:
        await ctx.step("a", dict)
        await ctx.step("a", dict)

    @app.task(max_attempts=1)
    async def odd(ctx: Context) -> None:
        await ctx.step("a", object)

    async with app, app.worker():
        with pytest.raises(JobDead, match="two steps"):
            await (await twice.enqueue()).result(timeout=20)
        with pytest.raises(JobDead, match="result of step 'a'"):
            await (await odd.enqueue()).result(timeout=20)


async def test_a_sleep_gives_the_slot_back(app, machine):
    woken: list[float] = []

    @app.task
    async def nap(ctx: Context) -> int:
        began = await ctx.step("begin", time.time)
        await ctx.sleep(0.3)
        await ctx.sleep(0.2)
        woken.append(time.time() - began)
        return ctx.job.attempt

    async with app, app.worker(concurrency=1, poll=0.1):
        jobs = [await nap.enqueue() for _ in range(3)]
        began = time.monotonic()
        attempts = [await job.result(timeout=60) for job in jobs]
        assert attempts == [3, 3, 3]
        assert min(woken) >= 0.5
        assert time.monotonic() - began < machine.seconds(10)
        assert (await jobs[0].refresh()).failures == 0


async def test_waiting_for_an_answer(app):
    @app.task
    async def approve(ctx: Context, timeout: float | None = None) -> object:
        return await ctx.wait_for("approved", timeout=timeout)

    async with app, app.worker(poll=0.1):
        job = await approve.enqueue()
        while (await job.refresh()).state is not State.SCHEDULED:
            await asyncio.sleep(0.01)
        assert (await job.refresh()).reason == "it waits for the answer 'approved'"
        await app.jobs.answer(job, "approved", {"by": "Ada"})
        assert await job.result(timeout=20) == {"by": "Ada"}

        early = await approve.using(delay=0.2).enqueue()
        await app.jobs.answer(early, "approved")
        assert (await early.refresh()).state is State.SCHEDULED, "an answer hurries nobody who does not wait for it"
        assert await early.result(timeout=20) is None
        with pytest.raises(IllegalMove):
            await app.jobs.answer(early, "approved", 2)
        with pytest.raises(NotFound):
            await app.jobs.answer("01900000-0000-7000-8000-000000000003", "approved")

        late = await approve.using(max_attempts=1).enqueue(0.2)
        with pytest.raises(JobDead, match="nobody answered 'approved'"):
            await late.result(timeout=20)


async def test_an_answer_that_comes_while_it_runs_is_heard(app):
    looked, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def approve(ctx: Context) -> object:
        try:
            return await ctx.wait_for("approved", timeout=3600)
        except BaseException:
            looked.set()
            await go_on.wait()
            raise

    async with app, app.worker(poll=0.1):
        job = await approve.enqueue()
        await asyncio.wait_for(looked.wait(), 20)
        await app.jobs.answer(job, "approved", "yes")
        await app.jobs.answer(job, "other", "no")
        go_on.set()
        assert await job.result(timeout=30) == "yes"


async def test_a_dead_job_is_undone(app):
    undone: list[int] = []

    @app.task
    async def refund(cents: int) -> None:
        undone.append(cents)

    @app.task(max_attempts=2, backoff=SOON)
    async def order(ctx: Context, dies: bool) -> None:
        if ctx.job.failures == 0:
            ctx.on_dead(refund.call(1))
            ctx.on_dead(refund.call(2))
        ctx.on_dead(refund.call(2))
        if dies:
            raise ValueError("no")

    @app.task
    def blocking(ctx: Context) -> None:
        ctx.on_dead(refund.call(3))
        raise Dead("at once")

    async with app, app.worker():
        await (await order.enqueue(False)).result(timeout=20)
        for job in [await order.enqueue(True), await blocking.enqueue()]:
            with pytest.raises(JobDead):
                await job.result(timeout=20)
        while await app.jobs.count(task="refund", state=State.SUCCEEDED) < 3:
            await asyncio.sleep(0.01)
        assert sorted(undone) == [1, 2, 3]
        with pytest.raises(InvalidCall, match="a call is needed"):
            Context.on_dead(_detached(app), refund)


def _detached(app):
    from perdure.handler.run_inline import _running
    from perdure.tasks.task import Task

    task: Task = next(iter(app.definitions().values()))
    from perdure.tasks.options import JobTemplate

    return Context.detached(app, _running(app, JobTemplate(task.name, {}).template))


async def test_without_a_store(app):
    @app.task
    async def plain(ctx: Context, sleeps: bool) -> int:
        number = await ctx.step("a", lambda: 4)
        if sleeps:
            await ctx.sleep(1)
        return number

    assert await plain.run(False) == 4
    with pytest.raises(StoreError, match="need a store"):
        await plain.run(True)


def test_timeout_is_a_kind_of_timeout():
    assert issubclass(ResultTimeout, TimeoutError)


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_kept_result_is_of_a_class_that_is_local_to_a_function(app, kind):
    """The annotations of this file are texts: they must be resolved with the names around the function."""

    @dataclass
    class Outside:
        price: int

    async def used_in_its_body() -> Outside:
        return Outside(1)

    @app.task
    async def bill(price: int) -> Outside:
        return Outside(price)

    seen: list[list[str]] = []

    if kind == "async":

        @app.task(backoff=SOON)
        async def shop(ctx: Context) -> None:
            @dataclass
            class Inside:
                price: int

            numbers = [Inside(3)]

            async def inside() -> Inside:
                return numbers[0]

            def in_a_list(price: int) -> list[Inside]:
                return [*numbers]

            results = [await ctx.step("outside", used_in_its_body), await ctx.step("inside", inside)]
            results += await ctx.step("list", in_a_list, price=4)
            results += await ctx.step("partial", functools.partial(in_a_list, 5))
            results.append(await ctx.step("class", Outside, 6))
            results.append(await ctx.step("task", bill.run, 7))
            seen.append([type(result).__name__ for result in results])
            if ctx.job.attempt == 1:
                raise ValueError("again")

    else:

        @app.task(backoff=SOON)
        def shop(ctx: Context) -> None:
            @dataclass
            class Inside:
                price: int

            numbers = [Inside(3)]

            def inside() -> Inside:
                return numbers[0]

            results = [ctx.sync.step("outside", used_in_its_body), ctx.sync.step("inside", inside)]
            seen.append([type(result).__name__ for result in results])
            if ctx.job.attempt == 1:
                raise ValueError("again")

    async with app, app.worker():
        await (await shop.enqueue()).result(timeout=20)
    names = ["Outside", "Inside", "Inside", "Inside", "Outside", "Outside"]
    assert seen == [names if kind == "async" else names[:2]] * 2


async def test_a_kept_result_whose_annotation_does_not_resolve_is_told(app, caplog):
    async def unknown() -> NobodyKnowsThis:  # noqa: F821
        return {"price": 1}

    @app.task(backoff=SOON)
    async def shop(ctx: Context) -> dict[str, int]:
        kept = await ctx.step("unknown", unknown)
        if ctx.job.attempt == 1:
            raise ValueError("again")
        return kept

    async with app, app.worker():
        assert await (await shop.enqueue()).result(timeout=20) == {"price": 1}
    assert (
        "the result of step 'unknown' is given as plain JSON, because the annotation of its function cannot"
        in caplog.text
    )
