"""signal and listen: wake-ups. They may be lost or spurious in general; within one healthy process they arrive."""

from __future__ import annotations

import asyncio
import threading

from perdure.core.clock import SECOND
from perdure.core.lifecycle import Cancelled, RunNow, Snoozed, Succeeded
from perdure.storage.contract import Note, Storage, Topic

from ..tools import MovableClock, assert_equal, enqueue_and_claim, job, report


class Ear:
    """A listener that a test can wait for."""

    def __init__(self, store: Storage, topic: Topic, queues: frozenset[str] | None = None) -> None:
        self._heard = asyncio.Event()
        self.threads: set[int] = set()
        self.stop = store.listen(topic, self._wake, queues)

    def _wake(self) -> None:
        self.threads.add(threading.get_ident())
        self._heard.set()

    async def hears(self, what: str) -> None:
        try:
            async with asyncio.timeout(5):
                await self._heard.wait()
        except TimeoutError:
            raise AssertionError(f"a listener must be woken by {what}") from None
        self._heard.clear()


async def case_an_enqueue_wakes(store: Storage, clock: MovableClock) -> None:
    every, mine = Ear(store, "ready"), Ear(store, "ready", frozenset({"q", "other"}))
    await store.enqueue([job(queue="q")])
    await every.hears("an enqueue")
    await mine.hears("an enqueue into its queue")
    assert_equal(every.threads | mine.threads, {threading.get_ident()}, "wake is called in the listener's own thread")
    every.stop()
    mine.stop()


async def case_whatever_becomes_ready_wakes(store: Storage, clock: MovableClock) -> None:
    record, late = await enqueue_and_claim(store), job(delay=SECOND)
    await store.enqueue([late])
    ear = Ear(store, "ready")
    await report(store, record.id, Snoozed(delay=0))
    await ear.hears("a job that comes back at once")
    await report(store, late.id, RunNow())
    await ear.hears("a job that is to run now")
    ear.stop()


async def case_a_job_for_later_wakes(store: Storage, clock: MovableClock) -> None:
    """A sleeping worker must learn when the next job is due, however long it wants to sleep."""
    record, limited = await enqueue_and_claim(store), job(delay=2 * SECOND, limits='[["k",1,null,null]]')
    ear = Ear(store, "ready")
    await store.enqueue([job(delay=SECOND)])
    await ear.hears("an enqueue of a job for later")
    await store.enqueue([job(at=await store.now() + SECOND), limited])
    await ear.hears("an enqueue of jobs for an instant, or under limits")
    await report(store, record.id, Snoozed(delay=SECOND))
    await ear.hears("a job that comes back later")
    ear.stop()


async def case_promotion_wakes(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(delay=SECOND)])
    ear = Ear(store, "ready")
    clock.advance(1)
    await store.promote(9)
    await ear.hears("a promotion")
    ear.stop()


async def case_resuming_wakes(store: Storage, clock: MovableClock) -> None:
    await store.pause("q", True)
    ear = Ear(store, "ready", frozenset({"q"}))
    await store.pause("q", False)
    await ear.hears("the resumption of its queue")
    ear.stop()


async def case_a_signal_wakes(store: Storage, clock: MovableClock) -> None:
    ear = Ear(store, "ready", frozenset({"q"}))
    await store.signal(["nobody listens"])
    await store.signal([])
    await store.signal(["q"])
    await ear.hears("a signal of its queue")
    ear.stop()


async def case_an_end_wakes_those_who_watch(store: Storage, clock: MovableClock) -> None:
    record, other = await enqueue_and_claim(store), await enqueue_and_claim(store)
    ear = Ear(store, "changed")
    await report(store, record.id, Succeeded())
    await ear.hears("the end of a job")
    await report(store, other.id, Cancelled())
    await ear.hears("a cancel")
    ear.stop()


async def case_progress_wakes_those_who_watch(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    ear = Ear(store, "changed")
    await store.note([Note(record.hold, '{"percent":1}')])
    await ear.hears("progress")
    ear.stop()


async def case_stopped_listeners_are_left_alone(store: Storage, clock: MovableClock) -> None:
    stopped, listening = Ear(store, "ready"), Ear(store, "ready")
    stopped.stop()
    stopped.stop()
    await store.enqueue([job()])
    await listening.hears("an enqueue")
    assert_equal(stopped.threads, set(), "a listener that was stopped is not woken")
    listening.stop()
