"""The checks of `perdure doctor`. Each returns what it found and, if something is wrong, what to do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perdure import PerdureError, State
from perdure.storage.migrations import status
from perdure.storage.urls import StoreUrl, ledger, opener, outbox_opener, parse

from .output import age, plural
from .root import one_line

if TYPE_CHECKING:
    from perdure import Perdure

MEND = "mend what it says, then ask the doctor again"
WAITING = [State.READY, State.SCHEDULED, State.BLOCKED]
LITTLE_SPACE, VERY_LITTLE_SPACE = 1 << 30, 64 << 20
CLOCKS_APART = 2.0
LONG_AGO = 60_000_000  # microseconds; a worker not seen for longer counts as dead
LATE = 60.0  # seconds; longer waits in an outbox are a warning
UNREADABLE_COUNTED = 1000
SAMPLE = 2000  # waiting jobs to search for unknown tasks


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    remedy: str | None = None


async def examine(app: Perdure, *, with_tasks: bool) -> list[Check]:
    """Run the checks in order. A failure that makes the rest pointless ends the list."""
    checks = [check async for check in _run_checks(app, with_tasks)]
    await app.close()
    return [replace(check, remedy=None) if check.status == "ok" else check for check in checks]


async def _run_checks(app: Perdure, with_tasks: bool) -> AsyncIterator[Check]:
    try:
        address = parse(app.url)
    except PerdureError as error:
        yield Check("url", "fail", one_line(error), "correct the URL")
        return
    yield Check("url", "ok", str(address))
    for check in _check_files(address):
        yield check
        if check.status == "fail":
            return
    try:
        store = opener(app.url, durability="relaxed", migrate=False)()
        await store.open()
    except PerdureError as error:
        yield Check("store", "fail", one_line(error), MEND)
        return
    try:
        yield _check_durability(await store.durability())
        yield _check_clock(await store.now())
        for finding in await store.diagnose():
            yield Check(finding.name, finding.status, finding.found, finding.remedy)
        workers = await store.workers(LONG_AGO)
        yield await _check_workers(app, workers)
        yield await _check_dead_letters(app)
        yield await _check_unreadable(store)
        yield await _check_paused(app)
        yield await _check_tasks(app, workers, with_tasks)
        if app.settings.outbox is not None:
            yield await _check_outbox(app.settings.outbox)
    finally:
        await store.close()


# ---- the store -------------------------------------------------------------------------------------
def _check_files(address: StoreUrl) -> Iterator[Check]:
    """Check the file, its disk and its schema, if the store is a file."""
    if address.path is None:
        return
    yield _check_file(address.path)
    yield _check_disk(address.path)
    yield _check_schema(str(address))


def _check_file(path: Path) -> Check:
    folder = path.absolute().parent
    if not path.exists():
        return Check("file", "fail", f"{path} is not there", "check the path; perdure migrate makes a new store")
    if not os.access(path, os.R_OK | os.W_OK):
        return Check("file", "fail", f"{path} cannot be read and written", "give this user the rights")
    if not os.access(folder, os.W_OK):
        found = f"{folder} cannot be written; SQLite puts its journal there"
        return Check("file", "fail", found, "give this user the rights to the folder")
    return Check("file", "ok", f"{path}, {_size(path.stat().st_size)}")


def _check_disk(path: Path) -> Check:
    free = shutil.disk_usage(path.absolute().parent).free
    remedy = "free some space, or move the file"
    if free < VERY_LITTLE_SPACE:
        return Check("disk", "fail", f"only {_size(free)} free", remedy)
    return Check("disk", "warn" if free < LITTLE_SPACE else "ok", f"{_size(free)} free", remedy)


def _check_schema(url: str) -> Check:
    """Check the schema version. If the schema is newer than this code, the ledger raises."""
    try:
        opened, migrations, close = ledger(url)
        try:
            found = status(opened, migrations)
        finally:
            close()
    except PerdureError as error:
        return Check("schema", "fail", one_line(error), MEND)
    version = f"version {found.version} of {found.newest}"
    return Check("schema", "fail" if found.pending else "ok", version, "run: perdure migrate")


def _check_durability(durability: Any) -> Check:
    """Check the grade. The store's own text names the version, journal mode and known bugs."""
    safe = durability.grade in "AB"
    return Check(
        "durability", "ok" if safe else "warn", f"grade {durability.grade}: {durability.detail}", durability.remedy
    )


def _check_clock(store_now: int) -> Check:
    apart = store_now / 1e6 - time.time()
    if abs(apart) > CLOCKS_APART:
        found = f"the store's clock is {apart:+.1f} s from this machine's"
        return Check("clock", "warn", found, "let both keep time by NTP")
    return Check("clock", "ok", "the store's clock and this machine's agree")


# ---- the work --------------------------------------------------------------------------------------
async def _check_workers(app: Perdure, workers: Sequence[Any]) -> Check:
    if workers:
        return Check("workers", "ok", f"{plural(len(workers), 'worker')} seen within a minute")
    due = await app.jobs.count(state=State.READY)
    if due:
        return Check(
            "workers", "warn", f"no worker was seen; waiting: {plural(due, 'job')}", "start: perdure worker module:app"
        )
    return Check("workers", "ok", "no worker was seen, and no job waits for one")


async def _check_dead_letters(app: Perdure) -> Check:
    count = await app.jobs.count(state=State.DEAD)
    remedy = "look: perdure dead list; then perdure dead retry ID, or perdure dead purge"
    return Check("dead letters", "warn" if count else "ok", plural(count, "dead letter"), remedy)


async def _check_unreadable(store: Any) -> Check:
    rows = await store.unreadable(limit=UNREADABLE_COUNTED)
    if not rows:
        return Check("unreadable", "ok", "every row that was met can be read")
    many = "at least " if len(rows) == UNREADABLE_COUNTED else ""
    last = rows[-1]
    which = f"{last.where} {last.id}: {', '.join(last.fields)}"
    found = f"{many}{plural(len(rows), 'row')} could not be read and set aside, the last one {which}"
    return Check("unreadable", "warn", found, "perdure dead export FILE writes them as they were stored")


async def _check_paused(app: Perdure) -> Check:
    stuck = [queue for queue in await app.queues.list() if queue.paused and queue.depth]
    if not stuck:
        return Check("paused queues", "ok", "no paused queue has waiting jobs")
    found = ", ".join(
        f"{queue.name} ({plural(queue.depth, 'job')}, oldest {age(queue.oldest) or '-'})" for queue in stuck
    )
    return Check("paused queues", "warn", found, f"perdure queues resume {stuck[0].name}")


async def _check_tasks(app: Perdure, workers: Sequence[Any], with_tasks: bool) -> Check:
    """Find waiting jobs whose task neither the app nor a live worker knows."""
    known = set(app.definitions()) if with_tasks else set()
    for worker in workers:
        tasks = worker.read_tasks("tasks")
        if tasks is None:
            return Check("tasks", "ok", f"worker {worker.id} takes jobs of every task")
        known |= tasks
    if not known:
        return Check("tasks", "ok", "not checked: no worker was seen; --app checks against the app's tasks")
    strangers = await _count_unknown_tasks(app, known)
    if not strangers:
        return Check("tasks", "ok", f"all waiting jobs are of the {plural(len(known), 'task')} known")
    found = "nobody knows " + ", ".join(f"{task} ({plural(count, 'job')})" for task, count in strangers.items())
    remedy = "was it renamed? Give the new task aliases=(…). Is its module imported? See Perdure(imports=[…])"
    return Check("tasks", "warn", found, remedy)


async def _count_unknown_tasks(app: Perdure, known: set[str]) -> dict[str, int]:
    waiting = await app.jobs.count(state=WAITING)
    for task in known:
        waiting -= await app.jobs.count(state=WAITING, task=task)
    if waiting <= 0:
        return {}
    names, seen, cursor = set[str](), 0, None
    while seen < SAMPLE:
        page = await app.jobs.find(state=WAITING, limit=500, cursor=cursor)
        names |= {job.task for job in page.items} - known
        seen, cursor = seen + len(page.items), page.cursor
        if cursor is None:
            break
    counts = {name: await app.jobs.count(state=WAITING, task=name) for name in sorted(names)}
    return counts or {"some tasks": waiting}


async def _check_outbox(url: str) -> Check:
    try:
        outbox = outbox_opener(url, migrate=False)()
        await outbox.open()
        try:
            outbox_state = await outbox.state()
        finally:
            await outbox.close()
    except PerdureError as error:
        return Check("outbox", "fail", one_line(error), "mend what it says; jobs enqueued with connection= wait for it")
    lag = (outbox_state.oldest or 0) / 1e6
    found = f"{plural(outbox_state.waiting, 'job')} in it, the oldest for {age(lag)}"
    if outbox_state.aside:
        found = f"{plural(outbox_state.aside, 'row')} set aside, {found}"
        return Check("outbox", "warn", found, "look: perdure relay --status; then perdure relay --retry")
    if lag > LATE:
        return Check("outbox", "warn", found, "start a worker of the app, or: perdure relay --app module:app")
    return Check("outbox", "ok", found if outbox_state.waiting else "no job waits in it")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
