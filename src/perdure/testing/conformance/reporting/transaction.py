"""begin_transaction: a handler's statements, jobs and completion commit together or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import wraps

from perdure.core.clock import SECOND
from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Succeeded, decide
from perdure.core.record import NewJob
from perdure.errors import StoreError
from perdure.storage.contract import (
    Claim,
    EnqueueResult,
    Filter,
    MissingParent,
    QueueSettings,
    Refusal,
    Storage,
    StoreTransaction,
    Want,
)

from ..tools import (
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_refused,
    assert_repeated,
    assert_true,
    assert_unchanged,
    begin,
    claim,
    enqueue_and_claim,
    ids,
    job,
    read_job,
    unique,
)


class Table:
    """The rows that a handler writes. The table has a unique name, because the database may be shared."""

    def __init__(self) -> None:
        self._name = f"perdure_conformance_{new_stamp():x}"

    async def create(self, store: Storage) -> None:
        await self._run(store, f"create table {self._name} (n integer)")

    async def drop(self, store: Storage) -> None:
        await self._run(store, f"drop table {self._name}")

    async def insert(self, tx: StoreTransaction) -> None:
        await tx.execute(f"insert into {self._name} values (1)")

    async def rows(self, store: Storage, inside: StoreTransaction | None = None) -> int:
        """Count the rows from inside a transaction or from outside."""
        tx = inside or await begin(store)
        found = await tx.execute(f"select n from {self._name}")
        if inside is None:
            await tx.rollback()
        return sum(row[0] for row in found)

    async def _run(self, store: Storage, statement: str) -> None:
        """Run a statement as a handler would."""
        record = await enqueue_and_claim(store, queue="table")
        tx = await begin(store)
        await tx.execute(statement)
        assert_accepted(await tx.complete(decide(record, Succeeded())), "a handler that makes or drops a table")


class Jobs(Table):
    """What a handler writes on a store without SQL: jobs that nobody claims in these cases."""

    async def create(self, store: Storage) -> None: ...

    async def drop(self, store: Storage) -> None: ...

    async def insert(self, tx: StoreTransaction) -> None:
        await tx.enqueue([job(task=self._name, queue="written", delay=3600 * SECOND)])

    async def rows(self, store: Storage, inside: StoreTransaction | None = None) -> int:
        """Inside a transaction nothing can be counted, so return the expected number."""
        return 1 if inside is not None else await store.count(Filter(task=self._name))


def with_a_table(
    case: Callable[[Storage, MovableClock, Table], Awaitable[None]],
) -> Callable[[Storage, MovableClock], Awaitable[None]]:
    @wraps(case)
    async def run(store: Storage, clock: MovableClock) -> None:
        table = Table() if await _speaks_sql(store) else Jobs()
        await table.create(store)
        await case(store, clock, table)
        await table.drop(store)

    return run


async def _speaks_sql(store: Storage) -> bool:
    tx = await begin(store)
    try:
        await tx.execute("select 1")
    except StoreError:
        return False
    finally:
        await tx.rollback()
    return True


@with_a_table
async def case_committed_together(store: Storage, clock: MovableClock, table: Table) -> None:
    record, new = await enqueue_and_claim(store), job()
    tx = await begin(store)
    await table.insert(tx)
    assert_equal(await table.rows(store, tx), 1, "a statement's rows, seen inside")
    assert_equal(await tx.enqueue([new]), [EnqueueResult(new.id)], "an enqueue inside answers as outside")
    assert_accepted(await tx.complete(decide(record, Succeeded('"done"'))), "the completion of a valid hold")
    after = await read_job(store, record.id)
    assert_equal(
        (after.state, after.result, after.accepted_stamp), (State.SUCCEEDED, '"done"', record.stamp), "the job's end"
    )
    assert_equal((await read_job(store, new.id)).state, State.READY, "the job enqueued inside")
    assert_equal(await table.rows(store), 1, "the row written inside")
    assert_equal(ids(await claim(store, 9)), [new.id], "the job enqueued inside can be claimed")


async def case_nothing_is_seen_before(store: Storage, clock: MovableClock) -> None:
    record, new = await enqueue_and_claim(store), job()
    tx = await begin(store, longest=SECOND)
    await tx.enqueue([new])
    assert_equal(await store.get([new.id]), [None], "a job enqueued inside is not on record before the commit")
    assert_unchanged(record, await read_job(store, record.id), "an open transaction")
    await tx.rollback()


@with_a_table
async def case_rolled_back(store: Storage, clock: MovableClock, table: Table) -> None:
    record, new = await enqueue_and_claim(store), unique("active")
    tx = await begin(store)
    await table.insert(tx)
    await tx.enqueue([new])
    await tx.rollback()
    assert_equal(await store.get([new.id]), [None], "a rolled-back job is nowhere")
    assert_equal(await table.rows(store), 0, "a rolled-back row is nowhere")
    assert_unchanged(record, await read_job(store, record.id), "a rolled-back transaction")
    again = unique("active")
    assert_equal(await store.enqueue([again]), [EnqueueResult(again.id)], "a rolled-back job holds no key")
    assert_accepted(await apply_report(store, record, Succeeded()), "the job's end after a rollback")


@with_a_table
async def case_refused_completion(store: Storage, clock: MovableClock, table: Table) -> None:
    record, new = await enqueue_and_claim(store), job()
    assert_accepted(await apply_report(store, await read_job(store, record.id), Cancelled()), "a cancel")
    tx = await begin(store)
    await table.insert(tx)
    await tx.enqueue([new])
    assert_refused(
        await tx.complete(decide(record, Succeeded())), Refusal.CANCELLED, "the completion of a cancelled job"
    )
    assert_equal(await store.get([new.id]), [None], "a refused completion rolls back what was enqueued")
    assert_equal(await table.rows(store), 0, "a refused completion rolls back what was written")


@with_a_table
async def case_repeated_completion(store: Storage, clock: MovableClock, table: Table) -> None:
    record = await enqueue_and_claim(store)
    assert_accepted(await apply_report(store, record, Succeeded("1")), "the first report")
    tx = await begin(store)
    await table.insert(tx)
    assert_repeated(await tx.complete(decide(record, Succeeded("2"))), "a completion that was accepted before")
    assert_equal(await table.rows(store), 0, "effects of a repeated completion are rolled back: they happened before")
    assert_equal((await read_job(store, record.id)).result, "1", "the first report stays")


@with_a_table
async def case_a_stale_holder(store: Storage, clock: MovableClock, table: Table) -> None:
    record = await enqueue_and_claim(store)
    decided = decide(record, Succeeded())
    await store.apply([decide(record, Succeeded())])
    await store.enqueue([job()])
    other = (await store.claim(Claim("w2", new_stamp(), (Want(1),))))[0]
    stale = decide(other, Succeeded())
    tx = await begin(store)
    await table.insert(tx)
    crossed = type(decided)(record.id, stale.guard, State.SUCCEEDED)
    assert_refused(await tx.complete(crossed), Refusal.COMPLETED, "a completion under a hold of another claim")
    assert_equal(await table.rows(store), 0, "a stale holder's rows are rolled back")


async def case_over_means_over(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    tx = await begin(store)
    await tx.complete(decide(record, Succeeded()))
    await tx.rollback()
    await tx.rollback()
    assert_equal(
        (await read_job(store, record.id)).state, State.SUCCEEDED, "a rollback after the commit undoes nothing"
    )
    for use in (tx.execute("select 1"), tx.enqueue([job()]), tx.complete(decide(record, Succeeded()))):
        try:
            await use
        except StoreError:
            continue
        raise AssertionError("a transaction that is over must raise StoreError when it is used")


@with_a_table
async def case_one_after_the_other(store: Storage, clock: MovableClock, table: Table) -> None:
    records = [await enqueue_and_claim(store) for _ in range(5)]

    async def handle(number: int) -> None:
        tx = await begin(store)
        await table.insert(tx)
        await asyncio.sleep(0)
        assert_accepted(await tx.complete(decide(records[number], Succeeded())), "a completion beside others")

    await asyncio.gather(*(handle(number) for number in range(5)))
    assert_equal(await table.rows(store), 5, "transactions of several handlers all come through")


async def case_unique_keys_inside(store: Storage, clock: MovableClock) -> None:
    owner = unique("active")
    await store.enqueue([owner])
    record = await enqueue_and_claim(store, queue="other")
    first, second = unique("any", "x"), unique("any", "x")
    tx = await begin(store)
    assert_equal(await tx.enqueue([unique("active")]), [EnqueueResult(owner.id, duplicate=True)], "a key held outside")
    assert_equal(await tx.enqueue([first]), [EnqueueResult(first.id)], "a free key")
    assert_equal(await tx.enqueue([second]), [EnqueueResult(first.id, duplicate=True)], "a key held inside")
    assert_accepted(await tx.complete(decide(record, Succeeded())), "the completion")
    assert_equal([row is None for row in await store.get([first.id, second.id])], [False, True], "what was stored")


async def case_a_duplicate_inside_needs_no_room(store: Storage, clock: MovableClock) -> None:
    for policy in ("reject", "wait", "drop"):
        await store.configure(QueueSettings(policy, max_depth=1, on_full=policy))
        record = await enqueue_and_claim(store, queue="other")
        owner = unique("active", policy, queue=policy)
        await store.enqueue([owner])
        tx = await begin(store)
        again = await tx.enqueue([unique("active", policy, queue=policy)])
        assert_equal(again, [EnqueueResult(owner.id, duplicate=True)], f"a duplicate for a full queue ({policy})")
        assert_accepted(await tx.complete(decide(record, Succeeded())), "the completion")


async def case_an_unknown_parent_inside_is_refused_at_once(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("full", max_depth=0, on_full="drop"))
    record, parent, dropped = await enqueue_and_claim(store), job(), job(queue="full")
    for orphans, missing in (([_after(job())], None), ([dropped, _after(dropped)], dropped.id)):
        tx = await begin(store)
        try:
            await tx.enqueue(orphans)
        except MissingParent as orphan:
            assert_equal(orphan.job, orphans[-1].id, "Orphan says who")
            assert_true(missing in (None, orphan.parent), "a parent that would be dropped is an unknown one")
        else:
            raise AssertionError("enqueue after an unknown job must raise Orphan, in a transaction too")
        await tx.rollback()
    tx = await begin(store)
    await tx.enqueue([parent])
    await tx.enqueue([_after(parent)])
    assert_accepted(await tx.complete(decide(record, Succeeded())), "a completion with a parent and its follower")


def _after(parent: NewJob) -> NewJob:
    return job(after=f'["{parent.id}"]', waits=1)


async def case_a_statement_that_fails(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    tx = await begin(store)
    try:
        await tx.execute("select * from there_is_no_such_table")
    except Exception:
        await tx.rollback()
    else:
        raise AssertionError("a statement that fails must raise")
    assert_unchanged(record, await read_job(store, record.id), "a transaction that failed")
    assert_accepted(await apply_report(store, record, Succeeded()), "the job's end afterwards")


async def case_ended_by_the_handler(store: Storage, clock: MovableClock) -> None:
    if not await _speaks_sql(store):
        return
    for sql in ("commit", "rollback"):
        record, new = await enqueue_and_claim(store), job()
        tx = await begin(store)
        await tx.execute(sql)
        for verb in (tx.execute("select 1"), tx.enqueue([new]), tx.complete(decide(record, Succeeded()))):
            try:
                await verb
            except StoreError:
                continue
            raise AssertionError(f"after a {sql} of the handler's own a transaction must raise StoreError")
        await tx.rollback()
        assert_equal(await store.get([new.id]), [None], f"a job enqueued after a {sql} of the handler's own")
        assert_unchanged(record, await read_job(store, record.id), f"a completion after a {sql} of the handler's own")
        assert_accepted(await apply_report(store, record, Succeeded()), "the job's end by other means")


@with_a_table
async def case_the_time_limit(store: Storage, clock: MovableClock, table: Table) -> None:
    record, new = await enqueue_and_claim(store), job()
    tx = await begin(store, longest=SECOND // 20)
    try:
        await table.insert(tx)
        await tx.enqueue([new])
    except StoreError:
        pass  # on a slow machine the limit may be over already
    await _assert_rolled_back(tx)
    try:
        await tx.complete(decide(record, Succeeded()))
    except StoreError:
        pass
    else:
        raise AssertionError("a transaction past its limit must raise StoreError when it is completed")
    assert_equal(await table.rows(store), 0, "a transaction past its limit is rolled back")
    assert_equal(await store.get([new.id]), [None], "a transaction past its limit is rolled back")
    assert_accepted(await apply_report(store, record, Succeeded()), "the job's end by other means")


async def case_the_time_limit_frees_the_store(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    forgotten = await begin(store, longest=SECOND // 20)
    async with asyncio.timeout(10):
        tx = await begin(store)
        assert_accepted(await tx.complete(decide(record, Succeeded())), "a completion after another's limit")
    await forgotten.rollback()


async def _assert_rolled_back(tx: StoreTransaction) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            await tx.enqueue([])
        except StoreError:
            return
        await asyncio.sleep(0)
    raise AssertionError("a transaction must be undone when it has reached its time limit")
