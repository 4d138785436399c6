"""Edges: jobs that wait for other jobs."""

from __future__ import annotations

import asyncio
import json

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import (
    Cancelled,
    Completed,
    Continued,
    Deleted,
    Died,
    Failed,
    Report,
    Retried,
    Skipped,
    Succeeded,
    decide,
)
from perdure.core.record import Record
from perdure.core.retention import Retention
from perdure.storage.contract import PARENT_CANCELLED, MissingParent, Storage

from ..tools import (
    FORGET,
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_true,
    claim,
    enqueue_and_claim,
    fault,
    ids,
    job,
    read_job,
    report,
    unique,
)
from .helpers import after, resolve_all, states_of


async def case_a_follower_enqueued_while_the_clock_was_ahead(store: Storage, clock: MovableClock) -> None:
    """A follower is due as soon as its parent has ended, whatever the clock says."""
    parent = await enqueue_and_claim(store)
    clock.advance(3600)
    follower = after(parent)
    await store.enqueue([follower])
    clock.advance(-3600)
    await report(store, parent.id, Succeeded())
    await store.resolve_edges(99)
    released = await read_job(store, follower.id)
    assert_equal(
        (released.state, released.run_at),
        (State.READY, await store.now()),
        "due at its release, though the clock went back",
    )
    assert_equal(ids(await claim(store, 9)), [follower.id], "it can be claimed")


async def case_a_released_follower_is_due_at_its_release(store: Storage, clock: MovableClock) -> None:
    """A released follower does not overtake jobs that were due before its release."""
    parent = await enqueue_and_claim(store)
    follower, later = after(parent), job(delay=3600 * SECOND)
    scheduled = after(parent, delay=3600 * SECOND)
    await store.enqueue([follower, scheduled])
    clock.advance(60)
    earlier = job()
    await store.enqueue([earlier, later])
    clock.advance(60)
    await report(store, parent.id, Succeeded())
    await store.resolve_edges(99)
    released = await read_job(store, follower.id)
    now = await store.now()
    assert_equal((released.state, released.run_at, released.rank), (State.READY, now, now), "due at its release")
    waits = await read_job(store, scheduled.id)
    assert_equal(
        (waits.state, waits.run_at), (State.SCHEDULED, waits.created_at + 3600 * SECOND), "one for later keeps its time"
    )
    assert_equal(ids(await claim(store, 9)), ids([earlier, follower]), "it does not overtake one that was due before")


async def case_waits_for_its_parents(store: Storage, clock: MovableClock) -> None:
    one, two = await enqueue_and_claim(store), await enqueue_and_claim(store)
    child = after(one, two)
    await store.enqueue([child])
    before = await read_job(store, child.id)
    assert_equal((before.state, before.waits, before.after), (State.BLOCKED, 2, child.after), "it waits for both")
    assert_equal([(await read_job(store, each.id)).followed for each in (one, two)], [True, True], "parents are marked")
    await report(store, one.id, Succeeded())
    between = await read_job(store, child.id)
    assert_equal((between.state, between.waits, between.version), (State.BLOCKED, 1, before.version), "one is left")
    await report(store, two.id, Skipped("nothing to do"))
    released = await read_job(store, child.id)
    assert_equal(
        (released.state, released.waits, released.version), (State.READY, 0, before.version + 1), "skipped counts too"
    )
    assert_equal(ids(await claim(store, 9)), [child.id], "it can be claimed")


async def case_a_delayed_child_is_scheduled(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent, delay=9 * SECOND)
    await store.enqueue([child])
    await report(store, parent.id, Succeeded())
    assert_equal(await states_of(store, child), [State.SCHEDULED], "its time is to come")


async def case_parents_that_have_ended(store: Storage, clock: MovableClock) -> None:
    table: list[tuple[Report, str, State]] = [
        (Succeeded(), "succeeded", State.READY),
        (Skipped(), "succeeded", State.READY),
        (Died("no"), "succeeded", State.BLOCKED),
        (Died("no"), "finished", State.READY),
        (Cancelled(), "succeeded", State.CANCELLED),
        (Cancelled(), "finished", State.READY),
    ]
    for reported, run_when, wanted in table:
        before, during = await enqueue_and_claim(store), await enqueue_and_claim(store)
        await report(store, before.id, reported)
        late, early = after(before, run_when=run_when), after(during, run_when=run_when)
        await store.enqueue([late, early])
        await report(store, during.id, reported)
        assert_equal(
            await states_of(store, late, early),
            [wanted, wanted],
            f"parent {type(reported).__name__}, run_when {run_when}",
        )
        await store.apply([decide(await read_job(store, each.id), Deleted()) for each in (late, early)])


async def case_a_dead_parent_that_succeeds_after_all(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child, other = after(parent), after(parent, run_when="finished")
    await store.enqueue([child, other])
    await report(store, parent.id, Died("no"))
    assert_equal(await states_of(store, child, other), [State.BLOCKED, State.READY], "dead keeps followers")
    await report(store, parent.id, Retried())
    record = next(each for each in await claim(store, 9) if each.id == parent.id)
    assert_accepted(await apply_report(store, record, Succeeded()), "the retried parent's success")
    assert_equal(await states_of(store, child), [State.READY], "they run after its retry")


async def case_cancelling_goes_down_the_line(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    second = after(first)
    third = after(second)
    stays = after(third, run_when="finished")
    await store.enqueue([second])
    await store.enqueue([third])
    await store.enqueue([stays])
    await report(store, first.id, Cancelled("enough"))
    await resolve_all(store)
    rows = [await read_job(store, each.id) for each in (second, third)]
    assert_equal([row.state for row in rows], [State.CANCELLED] * 2, "followers of a cancelled job are cancelled")
    assert_equal({row.reason for row in rows}, {PARENT_CANCELLED}, "they say why")
    assert_true(
        all(row.finished_at is not None and row.prune_at is not None for row in rows), "by the rules of a cancel"
    )
    assert_equal(await states_of(store, stays), [State.READY], "run_when finished runs")


async def case_deleted_parents(store: Storage, clock: MovableClock) -> None:
    waiting, done = job(queue="never"), await enqueue_and_claim(store)
    await report(store, done.id, Succeeded("1"))
    await store.enqueue([waiting])
    one, two = after(waiting), after(done)
    await store.enqueue([one])
    await report(store, waiting.id, Deleted())
    await report(store, done.id, Deleted())
    await store.enqueue([two])
    await resolve_all(store)
    assert_equal(
        await states_of(store, one, two), [State.CANCELLED, State.READY], "deleted = cancelled; done stays done"
    )


async def case_a_dead_parent_that_is_deleted(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child, other = after(parent), after(parent, run_when="finished")
    await store.enqueue([child, other])
    await report(store, parent.id, Died("no"))
    assert_equal(await states_of(store, child, other), [State.BLOCKED, State.READY], "it may still be retried")
    await report(store, parent.id, Deleted())
    await resolve_all(store)
    assert_equal(
        await states_of(store, child, other),
        [State.CANCELLED, State.READY],
        "no retry is possible: no follower is stranded",
    )


async def case_a_dead_parent_that_is_not_kept(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store, dead_retention=FORGET)
    child, other = after(parent), after(parent, run_when="finished")
    grandchild = after(child)
    await store.enqueue([child, other, grandchild])
    await report(store, parent.id, Died("no"))
    await resolve_all(store)
    wanted = [State.CANCELLED, State.READY, State.CANCELLED]
    assert_equal(
        await states_of(store, child, other, grandchild), wanted, "no retry is possible: no follower is stranded"
    )
    clock.advance(3600)
    await store.apply([decide(await read_job(store, other.id), Cancelled())])
    await store.prune(99)
    await store.prune(99)
    assert_equal(await store.get([parent.id]), [None], "its row is removed too")


async def case_an_unknown_parent_is_refused(store: Storage, clock: MovableClock) -> None:
    fine, orphan = job(), after(job())
    try:
        await store.enqueue([fine, orphan])
    except MissingParent as error:
        assert_equal((error.job, json.loads(orphan.after or "")), (orphan.id, [error.parent]), "Orphan says who")
    else:
        raise AssertionError("enqueue after an unknown job must raise Orphan")
    assert_equal(await store.get([fine.id, orphan.id]), [None, None], "nothing of the call is stored")


async def case_a_deleted_parent_is_unknown(store: Storage, clock: MovableClock) -> None:
    dead, waiting, done = await enqueue_and_claim(store), job(), await enqueue_and_claim(store)
    await report(store, dead.id, Died("no"))
    await report(store, done.id, Succeeded("1"))
    await store.enqueue([waiting])
    for parent in (dead, waiting, done):
        await report(store, parent.id, Deleted())
    for parent in (dead, waiting):
        try:
            await store.enqueue([after(parent, run_when="finished")])
        except MissingParent as error:
            assert_equal(error.parent, parent.id, "Orphan says for whom")
        else:
            raise AssertionError("enqueue after a job that was deleted before it was done must raise Orphan")
    child = after(done)
    await store.enqueue([child])
    assert_equal(
        await states_of(store, child), [State.READY], "what is done is done: its result is there for ten minutes"
    )


async def case_parents_in_the_same_list(store: Storage, clock: MovableClock) -> None:
    root = job()
    left, right = after(root), after(root)
    last = after(left, right)
    await store.enqueue([last, left, right, root])
    for wanted in ([root], [left, right], [last]):
        claimed = await claim(store, 9)
        assert_equal(set(ids(claimed)), set(ids(wanted)), "a graph runs in its order")
        verdicts = await store.apply([decide(record, Succeeded()) for record in claimed])
        assert_true(all(verdict.accepted for verdict in verdicts), "they succeed")


async def case_a_duplicate_parent_means_its_owner(store: Storage, clock: MovableClock) -> None:
    owner, again = unique("active"), unique("active")
    await store.enqueue([owner])
    child = after(again)
    stored = await store.enqueue([again, child])
    assert_equal(stored[0].duplicate, True, "its key is held")
    row = await read_job(store, child.id)
    assert_equal((row.state, json.loads(row.after or "")), (State.BLOCKED, [owner.id]), "the child waits for the owner")
    (record,) = await claim(store, 1)
    await apply_report(store, record, Succeeded())
    assert_equal(await states_of(store, child), [State.READY], "and follows it")


async def case_repeated_enqueue(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    child = after(parent)
    await store.enqueue([child])
    await report(store, parent.id, Succeeded())
    before = await read_job(store, child.id)
    await store.enqueue([child])
    assert_equal(await read_job(store, child.id), before, "a repeated enqueue changes nothing")


async def case_reports_about_a_blocked_job(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    cancelled, completed = after(parent), after(parent)
    await store.enqueue([cancelled, completed])
    await report(store, cancelled.id, Cancelled())
    await report(store, completed.id, Completed("1"))
    before = [await read_job(store, each.id) for each in (cancelled, completed)]
    await report(store, parent.id, Succeeded())
    assert_equal(
        [await read_job(store, row.id) for row in before], before, "a child that is not blocked any more is left alone"
    )
    assert_equal(await store.followers([parent.id]), [[]], "and its edge is closed")


async def case_followers(store: Storage, clock: MovableClock) -> None:
    one, two = await enqueue_and_claim(store), await enqueue_and_claim(store)
    children = [after(one), after(one, two)]
    await store.enqueue(children)
    assert_equal(
        await store.followers([two.id, one.id, job().id]), [[children[1].id], sorted(ids(children)), []], "who waits"
    )
    await report(store, one.id, Succeeded())
    assert_equal(await store.followers([one.id, two.id]), [[], [children[1].id]], "closed edges are not listed")


async def case_an_edge_follows_the_chain(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    child = after(first)
    await store.enqueue([child])
    second = job(chain_id=first.id)
    await report(store, first.id, Continued((second,)))
    assert_equal(await states_of(store, child), [State.BLOCKED], "the chain continues")
    await resolve_all(store)
    assert_equal(await store.followers([first.id, second.id]), [[], [child.id]], "the edge leads from the next job")
    (record,) = await claim(store, 9)
    await apply_report(store, record, Succeeded("2"))
    assert_equal(await states_of(store, child), [State.READY], "the end of the chain releases")
    late = after(first)
    await store.enqueue([late])
    await resolve_all(store)
    assert_equal(await states_of(store, late), [State.READY], "a late follower follows the chain too")


async def case_two_links_of_one_chain(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    second = job(chain_id=first.id)
    await report(store, first.id, Continued((second,)))
    child = after(first, second)
    await store.enqueue([child])
    await resolve_all(store)
    row = await read_job(store, child.id)
    assert_equal(
        (row.state, row.waits), (State.BLOCKED, 1), "the edge of the first is that of the second now: one is left"
    )
    (record,) = await claim(store, 9)
    await apply_report(store, record, Succeeded())
    assert_equal(await states_of(store, child), [State.READY], "the end of the chain releases")


async def case_many_children(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store)
    children = [after(parent) for _ in range(store.chunk + 50)]
    for start in range(0, len(children), store.chunk):
        await store.enqueue(children[start : start + store.chunk])
    answer = await store.exchange([decide(await read_job(store, parent.id), Succeeded())])
    assert_equal(answer.unresolved, True, "more than a chunk is left to settle")
    await resolve_all(store)
    rows = await store.get(ids(children[: store.chunk])) + await store.get(ids(children[store.chunk :]))
    assert_equal({row.state for row in rows if row is not None}, {State.READY}, "all are released")
    assert_equal({row.version for row in rows if row is not None}, {2}, "each once")
    assert_equal(await store.resolve_edges(9), 0, "there is nothing more to settle")


async def case_many_parents(store: Storage, clock: MovableClock) -> None:
    parents = [job() for _ in range(150)]
    await store.enqueue(parents)
    child = after(*parents)
    await store.enqueue([child])
    claimed = await claim(store, 150)
    for start in range(0, 150, 60):
        await store.apply([decide(record, Succeeded()) for record in claimed[start : start + 60]])
    await resolve_all(store)
    row = await read_job(store, child.id)
    assert_equal((row.state, row.waits, row.version), (State.READY, 0, 2), "released when the last one ended")


async def case_a_parent_is_kept_for_its_followers(store: Storage, clock: MovableClock) -> None:
    parent = await enqueue_and_claim(store, retention=FORGET)
    child = after(parent, retention=Retention.keep().text())
    await store.enqueue([child])
    await report(store, parent.id, Succeeded("7"))
    clock.advance(3600)
    await store.prune(99)
    assert_equal((await read_job(store, parent.id)).result, "7", "a parent stays until its follower has ended")
    (record,) = await claim(store, 9)
    await apply_report(store, record, Succeeded())
    clock.advance(3600)
    await store.prune(99)
    await store.prune(99)
    assert_equal(await store.get([parent.id]), [None], "then it is removed")


async def case_no_follower_is_stranded(store: Storage, clock: MovableClock) -> None:
    parents = [await enqueue_and_claim(store) for _ in range(12)]  # followers are enqueued while they end
    ends: list[Report] = [Succeeded(), Failed(fault(), retryable=False), Cancelled()]
    children = [after(parent, run_when="finished") for parent in parents]

    async def end(record: Record, reported: Report) -> None:
        await asyncio.sleep(0)
        await store.apply([decide(record, reported)])

    pairs = ((end(parent, ends[n % 3]), store.enqueue([children[n]])) for n, parent in enumerate(parents))
    await asyncio.gather(*(each for pair in pairs for each in pair))
    await resolve_all(store)
    assert_equal(set(await states_of(store, *children)), {State.READY}, "the follower is released in either order")
