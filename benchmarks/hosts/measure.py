"""Kill hosts at random moments of their leases, and see when another worker brings their jobs back."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.record import Record
from perdure.storage.contract import Storage
from perdure.storage.urls import opener

from ..contender import ROOT
from ..queues.shapes import enqueue, job

ELSEWHERE = "elsewhere"  # the queue of the worker that brings jobs back: it takes none itself
GIVEN_UP = 120.0  # seconds that a step may take


@dataclass
class Plan:
    """`hosts` with so many `jobs` each, in `rounds` of so many hosts at once. `lease`: seconds."""

    lease: float
    hosts: int
    jobs: int
    at_once: int
    chance: random.Random


@dataclass
class Came:
    """Seconds until each job came back, counted from a lease after the death of its host (`late`) and from the end of its
    own lease. `in_time`: whether the worker that brought it back had started a third of a lease before it was due."""

    late: list[float] = field(default_factory=list)
    after_lease: list[float] = field(default_factory=list)
    in_time: list[bool] = field(default_factory=list)


class Processes:
    """The processes of a run; all of them are killed when it is over."""

    def __init__(self, url: str, lease: float, slots: int) -> None:
        self._arguments = (url, lease, slots)
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, queue: str) -> subprocess.Popen[bytes]:
        url, lease, slots = self._arguments
        command = [sys.executable, "-m", "benchmarks.hosts.host", url, queue, str(lease), str(slots)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._running.remove(process)

    def close(self) -> None:
        for process in list(self._running):
            self.kill(process)


async def measure(url: str, plan: Plan, *, fresh: bool) -> Came:
    """`fresh`: the worker that brings jobs back starts after the hosts of its round are dead."""
    came = Came()
    processes = Processes(url, plan.lease, plan.jobs)
    store = opener(url, durability="relaxed")()
    await store.open()
    try:
        if not fresh:
            processes.start(ELSEWHERE)
            await _worker_started(store)
            await asyncio.sleep(plan.lease)  # it has reached the store for long enough
        for begin in range(0, plan.hosts, plan.at_once):
            queues = [f"host-{number}" for number in range(begin, min(begin + plan.at_once, plan.hosts))]
            await _round(store, processes, plan, queues, came, fresh=fresh)
    finally:
        processes.close()
        await store.close()
    return came


async def _round(
    store: Storage, processes: Processes, plan: Plan, queues: list[str], came: Came, *, fresh: bool
) -> None:
    lease = round(plan.lease * SECOND)
    jobs = [job(queue, task="held", lease=lease) for queue in queues for _ in range(plan.jobs)]
    ids = [each.id for each in jobs]
    await enqueue(store, jobs)
    hosts = {queue: processes.start(queue) for queue in queues}
    await _until(lambda: _all(store, ids, lambda record: record.state is State.RUNNING), "not all jobs run")
    within = plan.lease / 3 if fresh else plan.lease
    moments = {queue: plan.chance.uniform(0.0, within) for queue in queues}
    began = time.monotonic()
    ends: dict[str, int] = {}
    died: dict[str, int] = {}
    for queue in sorted(queues, key=lambda queue: moments[queue]):
        await asyncio.sleep(max(0.0, began + moments[queue] - time.monotonic()))
        processes.kill(hosts[queue])
        died[queue] = await store.now()
        ends |= await _lease_ends(store, [each.id for each in jobs if each.queue == queue])
    finder = processes.start(ELSEWHERE) if fresh else None
    back = await _came_back(store, ends)
    started = await _worker_started(store)
    due = {each.id: died[each.queue] + lease for each in jobs}
    for id, end in ends.items():
        came.late.append((back[id] - due[id]) / SECOND)
        came.after_lease.append((back[id] - end) / SECOND)
        came.in_time.append(started <= due[id] - lease // 3)
    if finder is not None:
        processes.kill(finder)
    for row in await store.workers(86_400 * SECOND):
        if finder is not None or ELSEWHERE not in row.about:
            await store.remove_worker(row.id)


async def _lease_ends(store: Storage, ids: list[str]) -> dict[str, int]:
    found = {record.id: record.leased_until for record in await store.get(ids) if record is not None}
    return {id: end for id, end in found.items() if end is not None}


async def _came_back(store: Storage, ends: dict[str, int]) -> dict[str, int]:
    """When each job was seen to have been taken from its dead worker, by the store's clock."""
    back: dict[str, int] = {}

    async def all_are_back() -> bool:
        waiting = [id for id in ends if id not in back]
        found = await store.get(waiting)
        now = await store.now()
        for record in found:
            if record is not None and (record.attempt > 1 or record.state is not State.RUNNING):
                back[record.id] = now
        return len(back) == len(ends)

    await _until(all_are_back, "not all jobs came back")
    return back


async def _all(store: Storage, ids: list[str], fits: Callable[[Record], bool]) -> bool:
    return all(record is not None and fits(record) for record in await store.get(ids))


async def _worker_started(store: Storage) -> int:
    """When the worker started that brings jobs back."""
    found: list[int] = []

    async def there() -> bool:
        found[:] = [row.started_at for row in await store.workers(86_400 * SECOND) if ELSEWHERE in row.about]
        return bool(found)

    await _until(there, "no worker started")
    return max(found)


async def _until(condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    deadline = time.monotonic() + GIVEN_UP
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        await asyncio.sleep(0.02)
