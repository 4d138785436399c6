"""Blocked jobs whose edges are lost: `inspect` restores the edges from `after`, so that no job stays blocked for ever."""

from __future__ import annotations

import msgspec

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Continued, Succeeded
from perdure.core.record import NewJob
from perdure.storage.contract import JobDump, Storage

from ..tools import MovableClock, NotOffered, assert_equal, claim, enqueue_and_claim, ids, job, read_job, report
from .helpers import after, resolve_all, states_of


async def lose_edges(store: Storage, *children: NewJob, **fields: object) -> None:
    """Remove the edges that lead to these jobs, and change these fields of the jobs."""
    wanted = set(ids(children))
    for carried in await store.export(None, 1000):
        if carried.record.id in wanted:
            record = msgspec.structs.replace(carried.record, **fields)
            await store.restore([JobDump(record, carried.lines, (), carried.kept_for)])


async def forget_followers(store: Storage, id: str) -> None:
    """Remove the mark that others wait for this job."""
    (carried,) = [each for each in await store.export(None, 1000) if each.record.id == id]
    record = msgspec.structs.replace(carried.record, followed=False)
    await store.restore([JobDump(record, carried.lines, carried.waits_for, carried.kept_for)])


async def inspect_all(store: Storage) -> None:
    """Inspect every row at least once, and resolve all edges."""
    if type(store).inspect is Storage.inspect:
        raise NotOffered(f"{store.name} does not inspect rows yet")
    for _ in range(3):
        await store.inspect(100)
    await resolve_all(store)


async def case_the_parent_still_runs(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent)
    await store.enqueue([child])
    await lose_edges(store, child)
    await inspect_all(store)
    assert_equal(await states_of(store, child), [State.BLOCKED], "a job without its edges waits for its parent still")
    assert_equal(await store.followers([parent.id]), [[child.id]], "the edge is made again")
    await report(store, parent.id, Succeeded("1"))
    await resolve_all(store)
    assert_equal(await states_of(store, child), [State.READY], "it is released when the parent has ended")
    assert_equal(ids(await claim(store, 9)), [child.id], "and can be claimed")


async def case_the_parent_has_ended(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent)
    await store.enqueue([child])
    await lose_edges(store, child)
    await report(store, parent.id, Succeeded("1"))
    await resolve_all(store)
    assert_equal(await states_of(store, child), [State.BLOCKED], "no edge leads to the job")
    await inspect_all(store)
    assert_equal(await states_of(store, child), [State.READY], "an inspection lets it go")
    assert_equal(ids(await claim(store, 9)), [child.id], "and it can be claimed")


async def case_the_parent_was_cancelled(store: Storage, clock: MovableClock) -> None:
    parent = job(delay=60 * SECOND)
    child = after(parent)
    await store.enqueue([parent, child])
    await lose_edges(store, child)
    await report(store, parent.id, Cancelled("no more"))
    await inspect_all(store)
    assert_equal(await states_of(store, child), [State.CANCELLED], "an inspection cancels it with its parent")


async def case_one_of_two_parents_has_ended(store: Storage, clock: MovableClock) -> None:
    done, runs = await enqueue_and_claim(store), await enqueue_and_claim(store)
    child = after(done, runs)
    await store.enqueue([child])
    await report(store, done.id, Succeeded("1"))
    await resolve_all(store)
    await lose_edges(store, child)
    await inspect_all(store)
    record = await read_job(store, child.id)
    assert_equal((record.state, record.waits), (State.BLOCKED, 1), "it waits for the parent that has not ended")
    await report(store, runs.id, Succeeded("2"))
    await resolve_all(store)
    assert_equal(ids(await claim(store, 9)), [child.id], "and is released with that one")


async def case_the_parent_was_continued(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent)
    await store.enqueue([child])
    await lose_edges(store, child)
    following = job(chain_id=parent.id)
    await report(store, parent.id, Continued((following,)))
    await inspect_all(store)
    assert_equal(await states_of(store, child), [State.BLOCKED], "it waits for the next job of the chain")
    assert_equal(ids(await claim(store, 9)), [following.id], "which is claimed first")
    await report(store, following.id, Succeeded("1"))
    await resolve_all(store)
    assert_equal(ids(await claim(store, 9)), [child.id], "and is released when the chain has ended")


async def case_it_waits_for_no_number(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent)
    await store.enqueue([child])
    await lose_edges(store, child, waits=0)
    await inspect_all(store)
    assert_equal(
        await states_of(store, child), [State.BLOCKED], "a job whose count is lost too waits for its parent still"
    )
    await report(store, parent.id, Succeeded("1"))
    await resolve_all(store)
    assert_equal(ids(await claim(store, 9)), [child.id], "and is released with it")


async def case_it_waits_for_no_job(store: Storage, clock: MovableClock) -> None:
    child = after(await enqueue_and_claim(store))
    await store.enqueue([child])
    await lose_edges(store, child, waits=0, after=None)
    await inspect_all(store)
    assert_equal(ids(await claim(store, 9)), [child.id], "a blocked job without parents is released")


async def case_the_parent_is_not_on_record(store: Storage, clock: MovableClock) -> None:
    child = after(await enqueue_and_claim(store))
    await store.enqueue([child])
    await lose_edges(store, child, after='["01890000-0000-7000-8000-000000000000"]')
    await inspect_all(store)
    assert_equal(await states_of(store, child), [State.CANCELLED], "a job whose parent is gone is cancelled")


async def case_the_parent_does_not_know(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent)
    await store.enqueue([child])
    await resolve_all(store)
    await forget_followers(store, parent.id)
    await report(store, parent.id, Succeeded("1"))
    await resolve_all(store)
    await inspect_all(store)
    assert_equal(
        await states_of(store, child), [State.READY], "an inspection lets jobs go whose parent did not know of them"
    )


async def case_many_at_once(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    children = [after(parent) for _ in range(5)]
    await store.enqueue(children)
    await lose_edges(store, *children)
    await inspect_all(store)
    assert_equal(await store.followers([parent.id]), [sorted(ids(children))], "all edges are made again")
    await report(store, parent.id, Succeeded("1"))
    await resolve_all(store)
    assert_equal(sorted(ids(await claim(store, 9))), sorted(ids(children)), "and all jobs are released")
