"""Run all due jobs of an app and return when none is left."""

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

from .app_runtime import runtime_of
from .clock import ManualClock
from .sync_or_async import either

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.worker.worker import Worker

_ACTIVE = (State.READY, State.RUNNING)
# more checks than a worker needs to claim jobs under limits, or to release followers of an ended job
CHECKS = 15


@either
async def drain(app: Perdure, *, timeout: float = 30.0) -> None:
    """Run every due job, jobs of due schedules, and the jobs that become due through them, until none is left; then prune.
    Expired jobs are cancelled, and jobs with a lapsed lease come back. Jobs that are due later, belong to a paused queue or
    an unknown task, or wait for a rate stay as they are. Raise TimeoutError after `timeout` seconds.

    `await drain(app)` in an `async def` test, `drain(app)` in a plain one.
    """
    storage = await runtime_of(app).storage()
    async with asyncio.timeout(timeout):
        if isinstance(app.settings.clock, ManualClock):
            # as if a worker had run from the start: one move of the clock makes a declared schedule fire
            await reconcile(storage, declared_schedules(app), app.definitions(), app.settings.clock.started_at)
        while True:
            async with app.worker(poll=0.05, grace=0) as worker:
                await _wait_until_idle(app, storage, worker)
            # the worker may have claimed a job after the last check, and handed it back when it stopped
            if await _find_work(app, storage) is not True:
                break
        while await storage.prune(storage.chunk) >= storage.chunk:
            pass


async def _wait_until_idle(app: Perdure, storage: Storage, worker: Worker) -> None:
    """Wait until the worker has nothing more to do. Meanwhile handle due, expired and lost jobs."""
    changed = asyncio.Event()
    stop = storage.listen("changed", changed.set)
    held_back = 0  # checks in a row that found only jobs that no worker may start
    try:
        while held_back < CHECKS and (busy := await _check(app, storage, worker)):
            held_back = held_back + 1 if busy == "held back" else 0
            changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await changed.wait()
    finally:
        stop()


async def _move_outbox(app: Perdure) -> bool:
    """Move the jobs of the outbox, if it is open. Return whether some are left, which the worker's own relay may move."""
    runtime = runtime_of(app)
    outbox = None if runtime.loops.outboxes is None else runtime.loops.outboxes.here()
    relay = runtime.relay()
    if outbox is None or relay is None:
        return False
    await relay.once()
    return (await outbox.state()).waiting > 0


async def _check(app: Perdure, storage: Storage, worker: Worker) -> bool | Literal["held back"]:
    """Whether there is anything to wait for. One check makes several queries. If the worker did something between them, none
    of them may have seen it, so the check does not count. While the worker is busy, no query is needed."""
    from perdure.worker.worker import control_of

    control = control_of(worker)
    done = control.confirmed_when_quiet()
    if done is None:
        return True
    busy = await _find_work(app, storage, worker)
    return busy if control.confirmed_when_quiet() == done else True


async def _reap(storage: Storage, worker: Worker | None) -> int:
    """Reap lapsed leases at once, without the delay of a worker's upkeep. Our own worker is alive."""
    lapsed = await storage.lapsed(storage.chunk, FOR_EVER)
    ours = None if worker is None else worker.id
    return await reap(storage, [record for record in lapsed if record.leased_by != ours])


async def _find_work(app: Perdure, storage: Storage, worker: Worker | None = None) -> bool | Literal["held back"]:
    waits = await _move_outbox(app)
    if await expire(storage, storage.chunk) or await _reap(storage, worker):
        return True
    if (await fire(storage, await storage.now(), app.definitions())).again:
        return True
    if await storage.promote(storage.chunk):
        return True
    # count blocked jobs first: a store may release them later than their parent's end, and the counts below see jobs that
    # are released now
    waits = waits or await storage.count(Filter(states=(State.BLOCKED,))) > 0
    if await storage.count(Filter(states=_ACTIVE)) == 0:
        return "held back" if waits else False
    if await storage.count(Filter(states=(State.RUNNING,))) > 0:
        return True
    return await _find_ready(app, storage) or ("held back" if waits else False)


async def _find_ready(app: Perdure, storage: Storage) -> bool | Literal["held back"]:
    """Whether a worker of the app would run a ready job. "held back": only jobs that wait for limits are ready."""
    paused = {row.settings.name for row in await storage.queues() if row.settings.paused}
    known, parked, cursor = app.definitions(), False, None
    while True:
        ready, cursor = await storage.find(Filter(states=_ACTIVE), storage.chunk, cursor)
        wanted = [record for record in ready if record.task in known and record.queue not in paused]
        if not all(record.parked for record in wanted):
            return True
        parked = parked or bool(wanted)
        if cursor is None:
            return "held back" if parked else False
