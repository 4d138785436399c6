"""Workers that die, stores that break: nothing is lost, nobody innocent is charged."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from perdure import Backoff, Context, Perdure, State, StoreError
from perdure.core.backoff import DEFAULT_BACKOFF
from perdure.core.clock import SECOND
from perdure.core.ids import new_id
from perdure.core.lifecycle import RunnerLost, decide
from perdure.core.record import NewJob, Record
from perdure.core.retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION
from perdure.storage.contract import Claim, Filter, Started, Want, WorkerRow
from perdure.storage.memory.store import MemoryStorage
from perdure.testing import ManualClock
from perdure.testing.flaky import FlakyStorage
from perdure.upkeep import store_contact as contact_module
from perdure.upkeep import upkeep as upkeep_module
from perdure.upkeep.reap import reap
from perdure.upkeep.store_contact import StoreContact
from perdure.upkeep.upkeep import Upkeep
from perdure.worker import service as service_module
from perdure.worker.claiming import answer_timeout as answer_timeout_module
from perdure.worker.running import attempt as attempt_module
from tests.support.waiting import eventually, stays


def new_job(**options) -> NewJob:
    return NewJob(
        id=new_id(),
        task=options.pop("task", "t"),
        payload="{}",
        backoff=DEFAULT_BACKOFF.text(),
        retention=DEFAULT_RETENTION.text(),
        dead_retention=DEFAULT_DEAD_RETENTION.text(),
        **options,
    )


async def claimed(store, worker: str, count: int, *, begun: int, stamp: int = 7, **options) -> list[Record]:
    await store.enqueue([new_job(**options) for _ in range(count)])
    records = await store.claim(Claim(worker, stamp, (Want(count),)))
    await store.exchange((), None, [Started(record.hold, await store.now()) for record in records[:begun]])
    return records


async def test_a_job_that_was_alone_is_charged():
    clock = ManualClock()
    store = MemoryStorage(clock)
    (record,) = await claimed(store, "w", 1, begun=1)
    clock.advance(61)
    assert await reap(store, await store.lapsed(100, 60 * SECOND)) == 1
    (seen,) = await store.get([record.id])
    assert (seen.state, seen.losses, seen.suspect) == (State.READY, 1, True)
    assert "WorkerLost" in seen.errors


@pytest.mark.parametrize("begun", [0, 1, 3])
async def test_several_are_suspects_and_run_alone_whatever_start_was_noted(begun):
    clock = ManualClock()
    store = MemoryStorage(clock)
    records = await claimed(store, "w", 3, begun=begun)
    clock.advance(61)
    await reap(store, await store.lapsed(100, 60 * SECOND))
    seen = await store.get([record.id for record in records])
    assert [(job.losses, job.suspect) for job in seen] == [(0, True)] * 3
    plain = await store.exchange((), Claim("v", 8, (Want(10),)))
    assert plain.claimed == []
    assert plain.suspects
    alone = await store.claim(Claim("v", 9, (Want(1, alone=True),)))
    assert [record.id for record in alone] == [records[0].id]


async def test_leases_that_end_one_after_the_other_are_judged_together():
    clock = ManualClock()
    store = MemoryStorage(clock)
    (early,) = await claimed(store, "w", 1, begun=1)
    clock.advance(15)
    (late,) = await claimed(store, "w", 1, begun=1, stamp=8)
    clock.advance(46)
    assert await reap(store, await store.lapsed(100, 60 * SECOND)) == 0
    clock.advance(15)
    assert await reap(store, await store.lapsed(100, 60 * SECOND)) == 2
    seen = await store.get([early.id, late.id])
    assert [(job.state, job.losses, job.suspect) for job in seen] == [(State.READY, 0, True)] * 2


async def test_a_job_does_not_wait_for_one_with_a_far_longer_lease():
    clock = ManualClock()
    store = MemoryStorage(clock)
    await store.enqueue([new_job(lease=20 * SECOND), new_job(lease=600 * SECOND)])
    short, long = await store.claim(Claim("w", 7, (Want(2),)))
    clock.advance(7)
    await store.renew([short.hold])
    clock.advance(2)
    await store.renew([long.hold])  # the last sign of the worker
    clock.advance(19)
    assert await reap(store, await store.lapsed(100, 600 * SECOND)) == 0
    clock.advance(1)
    assert await reap(store, await store.lapsed(100, 600 * SECOND)) == 1
    seen = await store.get([short.id, long.id])
    assert [(job.state, job.losses, job.suspect) for job in seen] == [(State.READY, 0, True), (State.RUNNING, 0, False)]


async def test_a_stray_of_a_worker_that_lives_comes_back_though_the_others_are_renewed():
    clock = ManualClock()
    store = MemoryStorage(clock)
    (stray,) = await claimed(store, "w", 1, begun=0)
    (renewed,) = await claimed(store, "w", 1, begun=1, stamp=8)
    for _ in range(4):
        clock.advance(20)
        await store.renew([renewed.hold])
        assert await reap(store, await store.lapsed(100, 60 * SECOND)) == 0
    clock.advance(20)
    await store.renew([renewed.hold])
    assert await reap(store, await store.lapsed(100, 60 * SECOND)) == 1
    (seen,) = await store.get([stray.id])
    assert (seen.state, seen.losses) == (State.READY, 0)


async def test_a_worker_started_again_under_its_name_does_not_shield_what_killed_it():
    clock = ManualClock()
    store = MemoryStorage(clock)
    (poison,) = await claimed(store, "w", 1, begun=1)
    clock.advance(5)
    await store.heartbeat(WorkerRow("w", await store.now(), 0, 0, "{}"))
    (healthy,) = await claimed(store, "w", 1, begun=1, stamp=8)
    clock.advance(56)
    assert await reap(store, await store.lapsed(100, 60 * SECOND)) == 1
    seen = await store.get([poison.id, healthy.id])
    assert [(job.state, job.losses) for job in seen] == [(State.READY, 1), (State.RUNNING, 0)]


async def test_three_charged_losses_are_poison():
    clock = ManualClock()
    store = MemoryStorage(clock)
    (record,) = await claimed(store, "w1", 1, begun=1)
    for loss in range(2, 4):
        clock.advance(61)
        await reap(store, await store.lapsed(10, 60 * SECOND))
        (again,) = await store.claim(Claim(f"w{loss}", loss, (Want(1, alone=True),)))
        await store.exchange((), None, [Started(again.hold, await store.now())])
    clock.advance(61)
    await reap(store, await store.lapsed(10, 60 * SECOND))
    (seen,) = await store.get([record.id])
    assert (seen.state, seen.losses, seen.attempt, seen.failures) == (State.DEAD, 3, 3, 0)
    assert seen.reason == "poison: 3 workers died while running it"


async def test_nothing_is_reaped_before_the_store_was_reached_for_a_third_of_the_lease():
    clock = ManualClock()
    store = MemoryStorage(clock)
    await claimed(store, "w", 1, begun=1)
    clock.advance(3600)
    assert await store.lapsed(10, 19 * SECOND) == []
    assert await reap(store, await store.lapsed(10, 20 * SECOND)) == 1


def test_contact_starts_again_after_a_gap_and_after_a_clock_jump(monkeypatch):
    time = [1000.0]
    monkeypatch.setattr(contact_module, "boottime", lambda: time[0])
    contact = StoreContact()
    assert contact.unbroken == 0
    for _ in range(4):
        contact.note_answer()
        time[0] += 4
    assert contact.unbroken == 16 * SECOND
    time[0] += 10
    assert contact.unbroken == 0
    contact.note_answer()
    contact.note_clock(5_000 * SECOND)
    time[0] += 3
    contact.note_answer()
    contact.note_clock(5_003 * SECOND)
    assert contact.unbroken == 3 * SECOND
    contact.note_clock(9_000 * SECOND)
    assert contact.unbroken == 0


def test_a_minute_of_contact_is_enough_for_any_lease(monkeypatch):
    """A renewal of a living worker is given up after 40 seconds at most, and repeated within a second."""
    time = [1000.0]
    monkeypatch.setattr(contact_module, "boottime", lambda: time[0])
    contact = StoreContact()
    contact.note_answer()
    hour = 3600 * SECOND
    while time[0] < 1059:
        time[0] += 1
        contact.note_answer()
        assert 3 * contact.proven < hour
        assert contact.missing_for(hour) == (1060 - time[0]) * SECOND
        assert contact.missing_for(30 * SECOND) == (1010 - time[0]) * SECOND
    time[0] += 1
    contact.note_answer()
    assert 3 * contact.proven >= 24 * hour
    assert contact.missing_for(hour) == 0
    contact.note_gap()
    assert contact.proven == 0
    assert answer_timeout_module.LONGEST + service_module.LONGEST_PAUSE < contact_module.ALL_HAVE_RENEWED / SECOND


async def test_a_long_lease_is_reaped_after_a_minute_of_contact(monkeypatch):
    time = [1000.0]
    monkeypatch.setattr(contact_module, "boottime", lambda: time[0])
    clock = ManualClock()
    store, contact = MemoryStorage(clock), StoreContact()
    await claimed(store, "w", 1, begun=1, lease=3600 * SECOND)
    clock.advance(3600)

    async def answered(answer):
        return await answer

    keeping = Upkeep(store, contact, None, answered, lambda: False, lambda: False, "".__eq__)
    contact.note_answer()
    for _ in range(59):
        time[0] += 1
        clock.advance(1)
        await keeping.check()
    assert [record.state for record in (await store.find(Filter(), 9, None))[0]] == [State.RUNNING]
    time[0] += 1
    clock.advance(1)
    await keeping.one_round()
    await keeping.one_round()
    assert [record.state for record in (await store.find(Filter(), 9, None))[0]] != [State.RUNNING]


def test_a_clock_that_is_moved_by_hand_needs_no_patience(monkeypatch):
    time = [1000.0]
    monkeypatch.setattr(contact_module, "boottime", lambda: time[0])
    contact = StoreContact()
    for _ in range(2):
        contact.note_answer()
        contact.note_clock(5_000 * SECOND)
        contact.note_clock(5_000 * SECOND)  # at the same moment, which proves nothing
        time[0] += 0.5
    assert not contact.by_hand
    time[0] += 2
    contact.note_clock(5_000 * SECOND)
    assert contact.by_hand
    contact.note_clock(9_000 * SECOND)
    assert contact.unbroken > 86_400 * SECOND


async def test_a_worker_brings_back_what_was_lost_by_a_clock_that_is_moved_by_hand(monkeypatch):
    monkeypatch.setattr(contact_module, "STILL", 0.01)
    monkeypatch.setattr(upkeep_module, "ROUND", 0.02)
    clock, runs = ManualClock(), Counter()
    app = Perdure("memory://", clock=clock)

    @app.task
    async def task(name: str) -> str:
        runs[name] += 1
        if name == "own":
            clock.advance(3600)
            await asyncio.sleep(0.2)
        return name

    async with app:
        lost = await task.enqueue("lost")
        await (await app._runtime.storage()).claim(Claim("w", 7, (Want(1),)))
        clock.advance(61)
        async with app.worker():
            assert await lost.result(timeout=10) == "lost"
            own = await task.enqueue("own")
            assert await own.result(timeout=10) == "own"
    assert runs == {"lost": 1, "own": 1}


class SlowlyFlaky(FlakyStorage):
    """Takes small exchanges, some at the same time, each after a while."""

    chunk = 10
    exchanges_in_flight = 3
    under_way = most = 0

    async def exchange(self, changes, claim=None, started=()):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0.003)
            return await self._flaky("exchange", self._inner.exchange)(changes, claim, started)
        finally:
            self.under_way -= 1


@pytest.mark.parametrize("kind", [FlakyStorage, SlowlyFlaky])
@pytest.mark.parametrize("every", [2, 3, 7])
async def test_a_flaky_store_loses_nothing_and_accepts_each_end_once(every, kind, monkeypatch):
    app = Perdure("memory://")
    calls: Counter[int] = Counter()

    @app.task(backoff=Backoff.fixed(0.01))
    async def work(n: int) -> int:
        calls[n] += 1
        if n % 10 == 0 and calls[n] == 1:
            raise ValueError("once")
        return n

    async with app:
        handles = await app.enqueue([work.call(n) for n in range(200)])
        real = await app._runtime.storage()
        flaky = kind(real, every=every)

        async def storage():
            return flaky

        monkeypatch.setattr(app._runtime, "storage", storage)
        async with app.worker(concurrency=8, poll=0.05):
            while await real.count(_succeeded()) < 200:
                await asyncio.sleep(0.02)
        monkeypatch.undo()
        jobs = [await handle.refresh() for handle in handles]
    assert flaky.failures > 0
    assert kind is FlakyStorage or flaky.most > 1
    assert all(job.state is State.SUCCEEDED for job in jobs)
    assert [job.attempt for job in jobs] == [2 if n % 10 == 0 else 1 for n in range(200)]
    assert calls == {n: 2 if n % 10 == 0 else 1 for n in range(200)}


def _succeeded():
    from perdure.storage.contract import Filter

    return Filter(states=(State.SUCCEEDED,))


async def test_a_job_that_lost_its_worker_runs_again_in_another(tmp_path):
    app = Perdure(f"sqlite:///{tmp_path / 'jobs.db'}")
    runs = []

    @app.task(lease=0.9)
    async def work(ctx: Context) -> str:
        runs.append(ctx.job.attempt)
        return "second"

    async with app:
        job = await work.enqueue()
        store = await app._runtime.storage()
        assert len(await store.claim(Claim("gone", 5, (Want(1),)))) == 1
        async with app.worker(poll=0.1):
            assert await job.result(timeout=20) == "second"
        seen = await job.refresh()
    assert runs == [2]
    assert (seen.attempt, seen.losses) == (2, 0)


async def test_a_signal_that_comes_during_an_exchange_is_not_lost():
    """The claim looked before the job was there; its empty answer comes after the signal."""
    app = Perdure("memory://")
    ran = asyncio.Event()

    @app.task
    async def work() -> None:
        ran.set()

    async with app:
        store = await app._runtime.storage()
        real, looked, go_on = store.exchange, asyncio.Event(), asyncio.Event()

        async def slow(*arguments):
            answer = await real(*arguments)
            looked.set()
            await go_on.wait()
            return answer

        store.exchange = slow
        async with app.worker(poll=30):
            await asyncio.wait_for(looked.wait(), 20)
            await work.enqueue()
            await asyncio.sleep(0)  # the signal comes through
            go_on.set()
            await asyncio.wait_for(ran.wait(), 20)


async def test_a_store_with_a_fault_of_its_own_makes_nobody_busy():
    """An error that is no StoreError may come at every exchange: the worker asks less and less often, and then goes on."""
    app = Perdure("memory://")

    @app.task
    async def work() -> int:
        return 7

    async with app:
        store = await app._runtime.storage()
        exchange, asked, broken = store.exchange, 0, True

        async def faulty(changes, claim=None, started=()):
            nonlocal asked
            asked += 1
            if broken:
                raise RuntimeError("a fault of the store")
            return await exchange(changes, claim, started)

        store.exchange = faulty
        async with app.worker():
            job = await work.enqueue()
            await eventually(lambda: asked >= 2)
            before = asked
            await stays(lambda: asked - before < 12, 1)  # the pauses grow from 25 ms
            broken = False
            assert await job.result(timeout=10) == 7


async def test_a_loop_that_always_fails_beside_others_that_work_is_not_busy_either(caplog, monkeypatch):
    """What the store answers to others says nothing about this one; and the log does not say the same thing all the time."""
    monkeypatch.setattr(upkeep_module, "ROUND", 0.5)
    app = Perdure("memory://", lease=1.5)

    @app.task
    async def work() -> None: ...

    async with app:
        store, asked = await app._runtime.storage(), 0

        async def faulty(*arguments):
            nonlocal asked
            asked += 1
            raise StoreError("no privilege for this")

        store.lapsed = faulty
        now = asyncio.get_running_loop().time
        async with app.worker(), asyncio.timeout(60):
            began = now()
            while asked < 2 or now() < began + 5:
                await (await work.enqueue()).result()
                await asyncio.sleep(0.01)
            seconds = now() - began
    assert asked < 2 * seconds
    assert sum("no privilege for this" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("suspect", [True, False])
@pytest.mark.parametrize("threaded", [True, False])
async def test_a_claim_that_is_answered_too_late_is_handed_back_and_claimed_again(monkeypatch, suspect, threaded):
    """Its lease is not to be trusted any more, so no handler may begin. The job is not to blame, nor may the worker wait for
    the end of an attempt that never began: least of all for that of a suspect, beside which it claims nothing."""
    monkeypatch.setattr(attempt_module, "MARGIN", 0.99)
    app = Perdure("memory://", lease=30)

    def work() -> str:
        return "done"

    async def work_on_the_loop() -> str:
        return "done"

    task = app.task(name="work")(work if threaded else work_on_the_loop)
    async with app:
        handles = await app.enqueue([task.call(), task.call()])
        store = await app._runtime.storage()
        if suspect:
            records = await store.claim(Claim("gone", 5, (Want(2),)))
            await store.apply([decide(record, RunnerLost(suspect=True)) for record in records])
        late = []

        async def exchange(changes, claim=None, started=()):
            answer = await real(changes, claim, started)
            if not late and answer.claimed:
                late.extend(answer.claimed)
                await asyncio.sleep(0.35)  # a hundredth of the lease is over
            return answer

        real, store.exchange = store.exchange, exchange
        async with app.worker(poll=0.05, concurrency=2):
            assert [await handle.result(timeout=10) for handle in handles] == ["done", "done"]
        jobs = [await handle.refresh() for handle in handles]
    assert late
    assert [job.errors for job in jobs] == [(), ()]
