"""Enqueues jobs in a transaction that the caller owns.

The store builds the statements (`Storage.caller_statements`: only INSERT and plain SELECT), the caller's own connection
runs them, and the caller commits or rolls back. Nothing here commits, waits, or migrates. First the connection is checked:
it must lead to the app's own database (`Storage.database_identity`), and be inside a transaction or about to begin one.

For an app with an outbox the jobs are inserted there instead, also while its store is out of reach. A relay moves them.

After the commit, workers are woken where the library reports it (SQLAlchemy, Django). On raw connections the store notices
by itself, or the caller calls `await app.signal(queue)`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..errors import InvalidCall, QueueFull, StoreError
from ..observe import log
from ..storage.contract import CallerStatements, EnqueueResult, MissingParent, QueueAtCapacity, QueueCapacity, Storage
from ..storage.database_identity import DatabaseIdentity
from ..storage.outbox import Late, Outbox
from ..storage.rules.records import KeyName, explain_missing_parent, key_name, refuse_dropped_parents
from ..sync import in_caller, is_blocking
from .adapters import ConnectionRunner, adapter_for, session_form
from .statements import AsyncCallerConnection, CallerConnection, Rows, Statement, StatementScript

if TYPE_CHECKING:
    from ..client.runtime import LoopRuntime, LoopRuntimes
    from ..core.record import NewJob
    from ..handler.context import Transaction

_at_home: WeakKeyDictionary[Any, DatabaseIdentity] = (
    WeakKeyDictionary()
)  # connections that were asked, and need not be again
_warned: WeakValueDictionary[int, Any] = WeakValueDictionary()  # connections whose sessions do not sync, by identity
_WARNED_AT_MOST = 1000
_warned_places: set[int] = (
    set()
)  # of those that cannot be referred to weakly (sqlite3); a loop_runtime may be used again
_KEYS_AT_MOST = 20  # tries for a key that others take and free meanwhile
_COUNT_AGAIN = 1.0  # seconds that a count of a queue may be old
_COUNT_WITHIN = 0.25  # the caller's own lock may hold the count up; then the last one has to do


async def enqueue_in_transaction(
    places: LoopRuntimes, connection: object, jobs: Sequence[NewJob]
) -> list[EnqueueResult]:
    """Store jobs inside the caller's transaction; they exist when it commits."""
    if (transaction := _handler_transaction(connection)) is not None:
        return await _enqueue_in_handler_transaction(transaction, jobs)
    if (form := session_form(connection)) is not None:
        loop_runtime = await places.get(migrate=False)
        return await _enqueue_in_session(loop_runtime, connection, form, jobs)
    reach = adapter_for(connection)
    if places.outboxes is not None:
        outbox = await places.outboxes.get()
        await _insert(outbox, outbox.caller_statements(jobs), reach, jobs, keyed=False)
        return [Late(job.id) for job in jobs]
    loop_runtime = await places.get(migrate=False)
    return await _enqueue_by_statements(loop_runtime, reach, jobs)


async def _enqueue_by_statements(
    loop_runtime: LoopRuntime, reach: ConnectionRunner, jobs: Sequence[NewJob]
) -> list[EnqueueResult]:
    """Insert the jobs, except those that a full queue drops."""
    dropped = await _find_dropped(loop_runtime, reach, jobs)
    kept = [job for job in jobs if job.id not in dropped]
    standing = await _insert_jobs(loop_runtime.storage, reach, kept) if kept else {}
    return [
        EnqueueResult(job.id, dropped=True)
        if job.id in dropped
        else EnqueueResult(standing.get(job.id, job.id), duplicate=standing.get(job.id, job.id) != job.id)
        for job in jobs
    ]


async def _insert_jobs(storage: Storage, reach: ConnectionRunner, jobs: Sequence[NewJob]) -> dict[str, str]:
    """Insert the jobs. For jobs with unique keys, returns the id of the job that has the key."""
    keyed = any(job.unique_key is not None for job in jobs)
    return _owners_of(jobs, await _insert(storage, storage.caller_statements(jobs), reach, jobs, keyed=keyed))


def _owners_of(jobs: Sequence[NewJob], rows: Rows) -> dict[str, str]:
    return {jobs[int(position)].id: str(id) for position, id in rows if id is not None}


async def _insert(
    target: Storage | Outbox,
    insertion: CallerStatements,
    reach: ConnectionRunner,
    jobs: Sequence[NewJob],
    *,
    keyed: bool,
) -> Rows:
    """Run the insertion of a store or an outbox on the caller's connection."""
    teller = CommitWakeup(target, {job.queue for job in jobs})

    def talk(line: CallerConnection | AsyncCallerConnection) -> StatementScript[Rows]:
        rows = yield from _run_inserts(insertion, keyed)
        line.after_commit(teller)
        return rows

    return await _run_on_connection(target, reach, talk)


async def _run_on_connection(
    target: Storage | Outbox,
    reach: ConnectionRunner,
    about: Callable[[CallerConnection | AsyncCallerConnection], StatementScript[Rows]],
) -> Rows:
    """Talk with the caller's connection, if it leads to this store or outbox."""
    home = await target.database_identity()

    def talk(home: DatabaseIdentity, line: CallerConnection | AsyncCallerConnection) -> StatementScript[Rows]:
        yield from _check_database(home, line)
        return (yield from about(line))

    try:
        return await reach(partial(talk, home), home.explain)
    except _Elsewhere as error:
        again = await target.database_identity(fresh=True)
        if again == home:
            raise StoreError(str(error)) from None
        return await reach(partial(talk, again), again.explain)


def _run_inserts(insertion: CallerStatements, keyed: bool) -> StatementScript[Rows]:
    """Run the statements. Only jobs with unique keys can be duplicates, and only then the owners are read.

    A key may be taken at the first statement and free at the last, since others commit meanwhile; then nobody stands for
    its job, and the same statements are run again. What they have stored already they leave as it is.
    """
    for _ in range(_KEYS_AT_MOST):
        for insert in insertion.inserts:
            yield Statement(*insert)
        if not keyed:
            return []
        rows = yield Statement(*insertion.readback, answers=True)
        if all(id is not None for _, id in rows):
            return rows
    raise StoreError("a unique key was taken and freed by others again and again: roll back and repeat")


# ---- is it the right one ---------------------------------------------------------------------------
class _Elsewhere(StoreError):
    """It leads to another database, or ours has been restarted since it was identified."""


def _check_database(home: DatabaseIdentity, line: CallerConnection | AsyncCallerConnection) -> StatementScript[None]:
    """Refuse a connection that cannot carry this store's jobs."""
    if line.dialect != home.dialect:
        raise InvalidCall(
            f"connection= is one to {line.dialect}, the app's {home.role} is {home}; "
            "jobs join a transaction only in their own database"
        )
    line.check()
    driver = line.driver()
    home.refuse(driver)
    if home.once and _at_home.get(driver) == home:
        return
    answer = yield Statement(home.question, answers=True)
    if (elsewhere := home.mismatch(answer)) is not None:
        raise _Elsewhere(
            f"connection= leads to {elsewhere}, the app's {home.role} is {home}; "
            "jobs join a transaction only in their own database"
        )
    line.check()  # in a pipeline it knows its state only now
    if (unsafe := home.check(answer)) is not None:
        _warn_once(driver, partial(log.caller_is_careless, *unsafe))
    if home.once:
        _at_home[driver] = home


def _warn_once(connection: object, warn: Callable[[], None]) -> None:
    """A job is as durable as the session that commits it."""
    if not _note_warned(connection):
        warn()


def _note_warned(connection: object) -> bool:
    """Whether it was warned about before. Notes that it is now."""
    try:
        known = _warned.get(id(connection)) is connection
        _warned[id(connection)] = connection
    except TypeError:
        known = id(connection) in _warned_places
        if len(_warned_places) >= _WARNED_AT_MOST:
            _warned_places.clear()
        _warned_places.add(id(connection))
    return known


# ---- a session of the store's own driver -----------------------------------------------------------
async def _enqueue_in_session(
    loop_runtime: LoopRuntime, session: Any, form: str, jobs: Sequence[NewJob]
) -> list[EnqueueResult]:
    joining = loop_runtime.storage.caller_session(jobs)
    if not joining.durable(session):
        _warn_once(session.client, log.caller_waits_for_no_majority)
    if form != "blocking" and is_blocking():
        raise InvalidCall(f"{type(session).__name__} belongs to an event loop: await the enqueue there")
    try:
        if form == "blocking":
            return await in_caller(lambda: joining.enqueue_blocking(session))
        return await joining.enqueue_async(session)
    except QueueAtCapacity as full:
        raise _no_waiting(full) from None


# ---- the handler's own transaction -----------------------------------------------------------------
def _handler_transaction(connection: object) -> Transaction | None:
    from ..handler.context import Transaction

    inner = getattr(connection, "_inner", None)  # the blocking form of one
    for candidate in (connection, inner):
        if isinstance(candidate, Transaction):
            return candidate
    return None


async def _enqueue_in_handler_transaction(transaction: Transaction, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
    loop = transaction._loop
    try:
        if loop is None or loop is asyncio.get_running_loop():
            return await transaction._inner.enqueue(jobs)
        placing = transaction._inner.enqueue(jobs)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(placing, loop))
    except QueueAtCapacity as full:
        raise _no_waiting(full) from None
    except MissingParent as orphan:
        raise explain_missing_parent(orphan, jobs) from None


def _no_waiting(full: QueueAtCapacity) -> QueueFull:
    return QueueFull(f"{full}; inside a transaction nothing waits for room")


# ---- is there room ---------------------------------------------------------------------------------
async def _find_dropped(loop_runtime: LoopRuntime, reach: ConnectionRunner, jobs: Sequence[NewJob]) -> set[str]:
    """The jobs that find no room and are dropped, by the policy of their queue; QueueFull where it would let them wait.

    Exact depth would need a lock; a count that is at most a second old has to do (it takes no lock of the caller's)."""
    await _count(loop_runtime)
    standing: dict[str, str] = {}
    if _is_short(loop_runtime.capacities, jobs):  # duplicates and stored jobs need no room
        owners = Statement(*loop_runtime.storage.caller_statements(jobs).owners, answers=True)
        standing = _owners_of(jobs, await _run_on_connection(loop_runtime.storage, reach, partial(_ask, owners)))
    left = {queue: room.left for queue, room in loop_runtime.capacities.items()}
    dropped = _drop_without_room([job for job in jobs if job.id not in standing], loop_runtime.capacities, left)
    refuse_dropped_parents(jobs, dropped)
    loop_runtime.capacities = {
        queue: QueueCapacity(room.settings, left[queue]) for queue, room in loop_runtime.capacities.items()
    }
    return dropped


def _is_short(rooms: Mapping[str, QueueCapacity], jobs: Sequence[NewJob]) -> bool:
    """Whether some queue has less room than all its jobs would take."""
    wanted = Counter(job.queue for job in jobs) if rooms else Counter[str]()
    return any(queue in rooms and rooms[queue].left < number for queue, number in wanted.items())


def _ask(question: Statement, line: CallerConnection | AsyncCallerConnection) -> StatementScript[Rows]:
    return (yield question)


def _drop_without_room(jobs: Sequence[NewJob], rooms: Mapping[str, QueueCapacity], left: dict[str, int]) -> set[str]:
    """Those of these new jobs that are dropped. `left` is what the others leave."""
    dropped: set[str] = set()
    taken: set[KeyName] = set()  # by jobs earlier in the list
    for job in jobs:
        name = key_name(job)
        if name in taken:
            continue
        if left.get(job.queue, 1) > 0:
            if job.queue in left:
                left[job.queue] -= 1
            if name is not None:
                taken.add(name)
        elif rooms[job.queue].settings.drops(job.priority):
            dropped.add(job.id)
        else:
            raise QueueFull(f"queue {job.queue!r} is full; inside a caller's transaction nothing waits for room")
    return dropped


async def _count(loop_runtime: LoopRuntime) -> None:
    loop = asyncio.get_running_loop()
    if loop.time() >= loop_runtime.counted_until:
        began = loop.time()
        with suppress(TimeoutError, StoreError):
            async with asyncio.timeout(_COUNT_WITHIN):
                loop_runtime.capacities = await loop_runtime.storage.queue_capacities()
        loop_runtime.counted_until = loop.time() + max(_COUNT_AGAIN, 20 * (loop.time() - began))


# ---- after the commit ------------------------------------------------------------------------------
class CommitWakeup:
    """Wakes the workers of some queues, from whatever thread commits."""

    def __init__(self, storage: Storage | Outbox, queues: set[str]) -> None:
        self._storage = storage
        self._queues = sorted(queues)
        self._loop = asyncio.get_running_loop()
        self._signals: set[asyncio.Task[None]] = set()

    def now(self) -> None:
        self._after(0.0)

    def soon(self) -> None:
        """For libraries that report shortly before the commit: wake a little later, and once more."""
        self._after(0.02)
        self._after(0.2)

    def _after(self, delay: float) -> None:
        with suppress(RuntimeError):  # the loop is over; the store notices without us
            self._loop.call_soon_threadsafe(self._loop.call_later, delay, self._signal)

    def _signal(self) -> None:
        signal = self._loop.create_task(self._storage.signal(self._queues))
        self._signals.add(signal)
        signal.add_done_callback(self._signals.discard)
