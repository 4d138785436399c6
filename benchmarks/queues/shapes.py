"""Stores with few or very many queues: what the queues hold, and what a worker asks for."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.core.backoff import DEFAULT_BACKOFF
from perdure.core.clock import SECOND
from perdure.core.ids import new_id, new_stamp
from perdure.core.lifecycle import Change, Succeeded, decide
from perdure.core.record import NewJob
from perdure.core.retention import DEFAULT_DEAD_RETENTION, DEFAULT_RETENTION
from perdure.storage.contract import Claim, QueueSettings, Storage, Want

ROOMY = 1_000_000  # a limit that is never reached
HOUR = 3600 * SECOND
SERVED = ("served-0", "served-1", "served-2")  # queues with ordinary ready jobs
AT_ONCE = 16  # calls that fill a store at the same time

Fill = Callable[[Storage, int, int], Awaitable[None]]  # the store, how many queues, how many jobs


def job(queue: str, *, limits: Sequence[Any] | None = None, **options: Any) -> NewJob:
    return NewJob(
        id=new_id(),
        task=options.pop("task", "task"),
        payload="{}",
        queue=queue,
        limits=None if limits is None else msgspec.json.encode(limits).decode(),
        backoff=DEFAULT_BACKOFF.text(),
        retention=DEFAULT_RETENTION.text(),
        dead_retention=DEFAULT_DEAD_RETENTION.text(),
        **options,
    )


async def enqueue(store: Storage, jobs: Sequence[NewJob]) -> None:
    for begin in range(0, len(jobs), store.chunk):
        await store.enqueue(jobs[begin : begin + store.chunk])


async def claim(store: Storage, want: Want) -> int:
    return len(await store.claim(Claim("worker", new_stamp(), (want,))))


async def _take_all(store: Storage, want: Want, *, end: bool = False) -> None:
    """Claim until nothing is left, nor anything that the store puts in order with the next claim. `end`: they succeed."""
    ends: list[Change] = []
    while True:
        found = await store.exchange(ends, Claim("worker", new_stamp(), (want,)))
        ends = [decide(record, Succeeded()) for record in found.claimed] if end else []
        if not found.claimed and found.next_due != 0:
            return


async def _each(calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def _serve(store: Storage) -> None:
    """Give the served queues more jobs than will be claimed."""
    await enqueue(store, [job(queue) for queue in SERVED for _ in range(200)])


# ---- what the queues hold --------------------------------------------------------------------------
def _queue_of_each(queues: int, jobs: int) -> list[int]:
    """The queues of so many jobs; the first three hold enough for a worker that serves them alone."""
    return [*(number % queues for number in range(jobs)), *[0, 1, 2] * 200]


async def fill_ready(store: Storage, queues: int, jobs: int) -> None:
    await enqueue(store, [job(f"queue-{number}") for number in _queue_of_each(queues, jobs)])


async def fill_limited(store: Storage, queues: int, jobs: int) -> None:
    names = _queue_of_each(queues, jobs)
    await enqueue(store, [job(f"queue-{name}", limits=[[f"key-{name}", ROOMY, None, None]]) for name in names])
    await _let_claims_hear(store, jobs)


async def _let_claims_hear(store: Storage, jobs: int) -> None:
    """Some stores tell claims of new jobs under limits by notes, of which each claim reads some hundreds."""
    for _ in range(jobs // 500 + 1):
        await claim(store, Want(1, limited=True))


async def fill_rated(store: Storage, queues: int, jobs: int) -> None:
    names = _queue_of_each(queues, jobs)
    await enqueue(store, [job(f"queue-{name}", limits=[[f"key-{name}", None, ROOMY, HOUR]]) for name in names])
    await _let_claims_hear(store, jobs)


async def fill_used_up(store: Storage, queues: int, jobs: int) -> None:
    """One job of each queue runs, which is all that its limit allows; the others wait."""
    await _use_up(store, queues, jobs, [1, None, None], end=False)


async def fill_rate_used_up(store: Storage, queues: int, jobs: int) -> None:
    """One job of each queue has started and ended within the hour, which is all that its rate allows."""
    await _use_up(store, queues, jobs, [None, 1, HOUR], end=True)


async def _use_up(store: Storage, queues: int, jobs: int, limit: Sequence[int | None], *, end: bool) -> None:
    def limited(name: int, priority: int) -> NewJob:
        return job(f"queue-{name}", priority=priority, limits=[[f"key-{name}", *limit]])

    first = [limited(name, 1) for name in range(queues)]
    for begin in range(0, queues, store.chunk):
        await enqueue(store, first[begin : begin + store.chunk])
        await _take_all(store, Want(store.chunk, limited=True), end=end)
    await enqueue(store, [limited(number % queues, 0) for number in range(jobs)])
    await _take_all(store, Want(store.chunk, limited=True), end=end)
    free = [job(queue, limits=[["key-served", ROOMY, None, None]]) for queue in SERVED for _ in range(200)]
    await enqueue(store, free)


async def fill_paused(store: Storage, queues: int, jobs: int) -> None:
    await enqueue(store, [job(f"queue-{number % queues}", priority=9) for number in range(jobs)])
    await _serve(store)
    await _each([lambda number=number: store.pause(f"queue-{number}", True) for number in range(queues)])


async def fill_paused_limited(store: Storage, queues: int, jobs: int) -> None:
    await fill_limited(store, queues, jobs)
    free = [job(queue, limits=[["key-served", ROOMY, None, None]]) for queue in SERVED for _ in range(200)]
    await enqueue(store, free)
    await _each([lambda number=number: store.pause(f"queue-{number}", True) for number in range(queues)])


async def fill_idle(store: Storage, queues: int, jobs: int) -> None:
    """Each of the queues had jobs, which have ended."""
    await enqueue(store, [job(f"queue-{number % queues}") for number in range(jobs)])
    await _take_all(store, Want(store.chunk), end=True)
    await _serve(store)


async def fill_configured(store: Storage, queues: int, jobs: int) -> None:
    settings = [QueueSettings(f"queue-{number}", max_depth=ROOMY) for number in range(queues)]
    await _each([lambda each=each: store.configure(each) for each in settings])
    await _serve(store)


SHAPES: Mapping[str, tuple[str, Fill, bool]] = {
    "ready": ("every queue holds ready jobs", fill_ready, False),
    "limited": ("every queue holds jobs under a limit of its own that has room", fill_limited, True),
    "rated": ("every queue holds jobs under a rate of its own that has room", fill_rated, True),
    "used-up": ("the limit of every queue is used up, but for three", fill_used_up, True),
    "rate-used-up": ("the rate of every queue is used up, but for three", fill_rate_used_up, True),
    "paused": ("every queue holds ready jobs and is paused, but for three", fill_paused, False),
    "paused-limited": ("every queue holds jobs under a limit and is paused, but for three", fill_paused_limited, True),
    "idle": ("every queue has had jobs, three hold some now", fill_idle, False),
    "configured": ("every queue has settings, three others hold jobs", fill_configured, False),
}
