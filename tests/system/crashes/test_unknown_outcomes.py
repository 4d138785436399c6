"""Answers that never came: the connection broke after the store had done its work, and nobody knows whether it did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Context, Perdure, State
from perdure.errors import StoreError
from tests.support.addresses import OF_EACH_KIND, address


class Intercepted:
    """A store whose exchanges can be broken: `after(answer)` may raise once the real store has done its work, and
    `before(changes)` and `noting(started)` in its place."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.before: Callable[[Any], None] = lambda changes: None
        self.after: Callable[[Any], None] = lambda answer: None
        self.noting: Callable[[Any], None] = lambda started: None
        self.asked_what_is_held = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exchange(self, changes: Any, claim: Any = None, started: Any = ()) -> Any:
        self.before(changes)
        self.noting(started)
        answer = await self._inner.exchange(changes, claim, started)
        self.after(answer)
        return answer

    async def apply(self, changes: Any) -> Any:
        return list((await self.exchange(changes)).verdicts)

    async def recover_claim(self, worker: str, stamp: int) -> Any:
        self.asked_what_is_held += 1
        return await self._inner.recover_claim(worker, stamp)


@pytest.fixture(params=["memory", "sqlite", *OF_EACH_KIND])
def app(request, tmp_path):
    return Perdure(address(request.param, tmp_path))


async def _intercepted(app: Perdure, monkeypatch) -> Intercepted:
    store = Intercepted(await app._runtime.storage())

    async def storage() -> Any:
        return store

    monkeypatch.setattr(app._runtime, "storage", storage)
    return store


async def test_jobs_of_a_claim_without_an_answer_are_asked_for_and_run(app, monkeypatch):
    runs = []

    @app.task
    async def work(ctx: Context) -> None:
        runs.append(ctx.job.attempt)

    async with app:
        jobs = [await work.enqueue() for _ in range(3)]
        store = await _intercepted(app, monkeypatch)
        broken = []

        def breaks_once(answer: Any) -> None:
            if answer.claimed and not broken:
                broken.append(len(answer.claimed))
                raise StoreError("the connection broke after the claim was done")

        store.after = breaks_once
        async with app.worker(poll=0.05):
            for job in jobs:
                await job.result(timeout=20)
    assert broken == [3]
    assert store.asked_what_is_held == 1
    assert runs == [1, 1, 1]


async def test_a_claim_without_an_answer_at_shutdown_is_handed_back_free(app, monkeypatch):
    @app.task
    async def work() -> None: ...

    async with app:
        job = await work.enqueue()
        store = await _intercepted(app, monkeypatch)
        worker = app.worker(poll=0.05)
        stops = []

        def breaks_as_it_stops(answer: Any) -> None:
            if answer.claimed and not stops:
                stops.append(asyncio.ensure_future(worker.stop()))
                raise StoreError("the connection broke after the claim was done")

        store.after = breaks_as_it_stops
        await worker.start()
        while not stops:
            await asyncio.sleep(0.005)
        await stops[0]
        seen = await job.refresh()
    assert (seen.state, seen.attempt, seen.failures, seen.losses) == (State.READY, 1, 0, 0)
    assert seen.leased_by is None


async def test_an_end_that_cannot_be_told_keeps_its_lease_until_it_is(app, monkeypatch):
    """Renewed until confirmed, not until sent: nobody else may run it while its end is on the way."""
    runs = []

    @app.task(lease=0.6)
    async def work(ctx: Context) -> str:
        runs.append(ctx.job.attempt)
        return "told in the end"

    async with app:
        job = await work.enqueue()
        store = await _intercepted(app, monkeypatch)
        loop = asyncio.get_running_loop()
        broken_until = loop.time() + 1.5

        def breaks(changes: Any) -> None:
            if changes and loop.time() < broken_until:
                raise StoreError("the connection broke before the end was sent")

        store.before = breaks
        async with app.worker(poll=0.05), app.worker(poll=0.05):
            assert await job.result(timeout=20) == "told in the end"
        seen = await job.refresh()
    assert loop.time() > broken_until
    assert runs == [1]
    assert (seen.attempt, seen.losses) == (1, 0)


async def test_a_repeated_end_after_a_broken_answer_counts_once(app, monkeypatch):
    @app.task
    async def work() -> None:
        raise ValueError("on purpose")

    async with app:
        job = await work.using(max_attempts=2).enqueue()
        store = await _intercepted(app, monkeypatch)
        broken = []

        def breaks_once(answer: Any) -> None:
            if answer.verdicts and not broken:
                broken.append(answer.verdicts)
                raise StoreError("the connection broke after the end was stored")

        store.after = breaks_once
        async with app.worker(poll=0.05):
            async for seen in job.watch(timeout=20):
                if seen.failures:
                    break
    assert broken
    assert (seen.failures, len(seen.errors)) == (1, 1)


async def test_one_bad_end_fails_its_own_job_only(app, monkeypatch):
    """A change that no store can take in must not hold up the others of its batch."""

    @app.task
    async def work(number: int) -> int:
        await asyncio.sleep(0.05)
        return number

    async with app:
        handles = await app.enqueue([work.using(max_attempts=1).call(number) for number in range(8)])
        bad = str(handles[3].id)
        store = await _intercepted(app, monkeypatch)

        def poisoned(changes: Any) -> None:
            if any(change.id == bad and change.state == State.SUCCEEDED for change in changes):
                raise OverflowError("no column holds this")

        store.before = poisoned
        async with app.worker(poll=0.05):
            states = [[seen.state async for seen in handle.watch(timeout=20)][-1] for handle in handles]
        seen = await handles[3].refresh()
    assert states == [State.DEAD if number == 3 else State.SUCCEEDED for number in range(8)]
    assert seen.errors[-1].kind == "OverflowError"


async def test_a_start_whose_note_was_lost_is_noted_again(app, monkeypatch):
    go = asyncio.Event()

    @app.task
    async def work() -> None:
        await go.wait()

    async with app:
        job = await work.enqueue()
        store = await _intercepted(app, monkeypatch)
        broken = []

        def breaks_once(started: Any) -> None:
            if started and not broken:
                broken.append(started)
                raise StoreError("the connection broke before the start was noted")

        store.noting = breaks_once
        async with app.worker(poll=0.05):
            async with asyncio.timeout(10):
                while (await job.refresh()).started_at is None:
                    await asyncio.sleep(0.02)
            go.set()
            await job.result(timeout=20)
    assert broken
