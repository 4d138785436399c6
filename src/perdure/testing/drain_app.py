"""Run what is due, then go on with the test."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from perdure.core.job import State
from perdure.schedules.declaration import declared_schedules
from perdure.schedules.firing import fire
from perdure.schedules.reconcile import reconcile
from perdure.storage.contract import Filter, Storage
from perdure.upkeep.reap import reap
from perdure.upkeep.store_contact import FOR_EVER
from perdure.upkeep.upkeep import expire

from .clock import ManualClock
from .sync_or_async import either

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.worker.worker import Worker

_AT_WORK = (State.READY, State.RUNNING)
# longer than a worker needs to ask for jobs under limits, or to let those go that wait for a job that has ended
LOOKS = 15


@either
async def drain(app: Perdure, *, timeout: float = 30.0) -> None:
    """Run every job that is due, those of schedules and those they make due, until none is left; then remove what is no
    longer kept. Jobs that were not started in time are cancelled, and those whose lease is over come back. Jobs of a paused
    queue, of a task that the app does not know, due later, or held back by a rate stay as they are. TimeoutError when it
    takes too long.

    `await drain(app)` in an `async def` test, `drain(app)` in a plain one.
    """
    storage = await app._storage()
    async with asyncio.timeout(timeout):
        if isinstance(app.settings.clock, ManualClock):
            # as if a worker had been there from the start: one move of the clock makes a declared schedule fire
            await reconcile(storage, declared_schedules(app), app.definitions(), app.settings.clock._start)
        while True:
            async with app.worker(poll=0.05, grace=0) as worker:
                await _wait_until_idle(app, storage, worker)
            # the worker may have claimed a job after the last look, and handed it back when it was stopped
            if await _busy(app, storage) is not True:
                break
        while await storage.prune(storage.chunk) >= storage.chunk:
            pass


async def _wait_until_idle(app: Perdure, storage: Storage, worker: Worker) -> None:
    """Wait until the worker has nothing more to do. What is due, expired or lost is looked for meanwhile."""
    stir = asyncio.Event()
    stop = storage.listen("changed", stir.set)
    held_back = 0  # looks at nothing but jobs that no worker may start
    try:
        while held_back < LOOKS and (busy := await _looked(app, storage, worker)):
            held_back = held_back + 1 if busy == "held back" else 0
            stir.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await stir.wait()
    finally:
        stop()


async def _in_the_outbox(app: Perdure) -> bool:
    """Whether jobs are left in the outbox that cannot be moved now: the worker's own relay may be about to. A test of other
    things may do without an outbox."""
    outbox = None if app._places.outboxes is None else app._places.outboxes.here()
    relay = app._relay()
    if outbox is None or relay is None:
        return False
    await relay.once()
    return (await outbox.state()).waiting > 0


async def _looked(app: Perdure, storage: Storage, worker: Worker) -> bool | Literal["held back"]:
    """Whether there is anything to wait for. A look is several questions: what the worker did between them, none of them may
    have seen. While the worker is at work, nothing need be asked."""
    done = worker._quiet()
    if done is None:
        return True
    busy = await _busy(app, storage, worker)
    return busy if worker._quiet() == done else True


async def _reaped(storage: Storage, worker: Worker | None) -> int:
    """Without the patience of a worker's upkeep, which is for outages; our own worker is alive."""
    lapsed = await storage.lapsed(storage.chunk, FOR_EVER)
    ours = None if worker is None else worker.id
    return await reap(storage, [record for record in lapsed if record.leased_by != ours])


async def _busy(app: Perdure, storage: Storage, worker: Worker | None = None) -> bool | Literal["held back"]:
    waits = await _in_the_outbox(app)
    if await expire(storage, storage.chunk) or await _reaped(storage, worker):
        return True
    if (await fire(storage, await storage.now(), app.definitions())).again:
        return True
    if await storage.promote(storage.chunk):
        return True
    # first those that wait for jobs: a store may let them go after their parent's end is seen, and who is let go now is
    # seen at work below
    waits = waits or await storage.count(Filter(states=(State.BLOCKED,))) > 0
    if await storage.count(Filter(states=_AT_WORK)) == 0:
        return "held back" if waits else False
    if await storage.count(Filter(states=(State.RUNNING,))) > 0:
        return True
    return await _any_ready(app, storage) or ("held back" if waits else False)


async def _any_ready(app: Perdure, storage: Storage) -> bool | Literal["held back"]:
    """Whether a job is ready that a worker of the app would run; "held back": only jobs that wait for room under limits."""
    paused = {row.settings.name for row in await storage.queues() if row.settings.paused}
    known, parked, cursor = app.definitions(), False, None
    while True:
        ready, cursor = await storage.find(Filter(states=_AT_WORK), storage.chunk, cursor)
        wanted = [record for record in ready if record.task in known and record.queue not in paused]
        if not all(record.parked for record in wanted):
            return True
        parked = parked or bool(wanted)
        if cursor is None:
            return "held back" if parked else False
