"""apply with new jobs: a job that continues its chain, and completion from outside."""

from __future__ import annotations

import json

import msgspec

from perdure.core.job import State
from perdure.core.lifecycle import Completed, Continued, Stopped, Succeeded, decide
from perdure.storage.contract import MissingParent, QueueSettings, Refusal, Storage

from ..tools import (
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_refused,
    assert_repeated,
    assert_true,
    claim,
    enqueue_and_claim,
    ids,
    job,
    read_job,
    report,
    unique,
)


async def case_done_and_the_next_one_there(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    following = job(chain_id=first.id)
    row = await report(store, first.id, Continued((following,)))
    assert_equal((row.state, row.next_id, row.result), (State.SUCCEEDED, following.id, None), "the first is done")
    assert_equal((await read_job(store, following.id)).state, State.READY, "the next is there")
    assert_equal(ids(await claim(store, 9)), [following.id], "and can be claimed")


async def case_a_refused_report_adds_nothing(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    following = job(chain_id=first.id)
    zombie = msgspec.structs.replace(first, stamp=(first.stamp or 0) + 1)
    assert_refused(await apply_report(store, zombie, Continued((following,))), Refusal.TAKEN, "a stale holder")
    assert_equal(await store.get([following.id]), [None], "nothing was put on record")


async def case_a_repeated_report_adds_nothing_twice(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    following = job(chain_id=first.id)
    change = decide(first, Continued((following,)))
    assert_accepted((await store.apply([change]))[0], "the first time")
    before = await read_job(store, following.id)
    assert_repeated((await store.apply([change]))[0], "the second time")
    assert_equal(await read_job(store, following.id), before, "the next job is left as it is")


async def case_several_are_added(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    one = job()
    two = job(after=json.dumps([one.id]), waits=1)
    change = msgspec.structs.replace(decide(first, Succeeded("1")), adds=(two, one), next_id=two.id)
    assert_accepted((await store.apply([change]))[0], "a change that adds a flow")
    assert_equal(
        [(await read_job(store, each.id)).state for each in (one, two)], [State.READY, State.BLOCKED], "with its edges"
    )
    assert_equal((await read_job(store, first.id)).next_id, two.id, "next_id is what the change says")


async def case_an_orphan_stops_the_call(store: Storage, clock: MovableClock) -> None:
    first, other = await enqueue_and_claim(store), await enqueue_and_claim(store)
    orphan = job(after=json.dumps([job().id]), waits=1)
    bad = msgspec.structs.replace(decide(first, Succeeded()), adds=(orphan,))
    try:
        await store.apply([decide(other, Succeeded()), bad])
    except MissingParent:
        pass
    else:
        raise AssertionError("a change that adds an orphan must raise Orphan")
    found = [(await read_job(store, each.id)).state for each in (first, other)]
    assert_equal(found, [State.RUNNING, State.RUNNING], "nothing of the call is written")


async def case_bounds_do_not_stop_a_chain(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([job(queue="q")])
    for on_full in ("reject", "wait", "drop"):
        first = await enqueue_and_claim(store)
        await store.configure(QueueSettings("q", max_depth=1, on_full=on_full))
        following = job(queue="q")
        await report(store, first.id, Continued((following,)))
        assert_equal(
            (await read_job(store, following.id)).state, State.READY, f"a chain continues in a full queue: {on_full}"
        )


async def case_unique_keys_hold(store: Storage, clock: MovableClock) -> None:
    for scope in ("active", "any"):
        first = await enqueue_and_claim(store)
        owner, following = unique(scope, queue="later"), unique(scope)
        await store.enqueue([owner])
        row = await report(store, first.id, Continued((job(), following)))
        assert_equal(row.state, State.SUCCEEDED, "the first is done")
        assert_equal(await store.get([following.id]), [None], "the next would be a duplicate")
        assert_equal(row.next_id, owner.id, "the chain continues with the job that has its key")


async def case_followers_go_on_with_the_owner_of_a_key(store: Storage, clock: MovableClock) -> None:
    first = await enqueue_and_claim(store)
    owner, child = unique("active", queue="later"), job(after=json.dumps([first.id]), waits=1)
    await store.enqueue([owner, child])
    await report(store, first.id, Continued((unique("active"),)))
    while await store.resolve_edges(500):
        pass
    assert_equal((await read_job(store, child.id)).state, State.BLOCKED, "the chain continues")
    await report(store, owner.id, Completed("1"))
    while await store.resolve_edges(500):
        pass
    assert_equal((await read_job(store, child.id)).state, State.READY, "and has ended with the owner")


async def case_a_key_that_is_handed_on(store: Storage, clock: MovableClock) -> None:
    new = unique("active")
    await store.enqueue([new])
    (first,) = await claim(store, 1)
    following = unique("active")
    row = await report(store, first.id, Continued((following,)))
    assert_equal(row.next_id, following.id, "the key was free when its job had ended")
    assert_equal((await read_job(store, following.id)).state, State.READY, "the next is there")


async def case_in_a_handlers_transaction(store: Storage, clock: MovableClock) -> None:
    from ..tools import begin

    first = await enqueue_and_claim(store)
    transaction = await begin(store)
    following = job(chain_id=first.id)
    assert_accepted(await transaction.complete(decide(first, Continued((following,)))), "the completion")
    assert_equal(
        [(await read_job(store, each.id)).state for each in (first, following)], [State.SUCCEEDED, State.READY], "both"
    )


async def case_completed_from_outside(store: Storage, clock: MovableClock) -> None:
    waiting, later = job(), job(delay=99)
    await store.enqueue([waiting, later])
    for new in (waiting, later):
        row = await report(store, new.id, Completed('{"by":"hand"}'))
        assert_equal((row.state, row.result), (State.SUCCEEDED, '{"by":"hand"}'), "somebody else has done it")
        assert_true(row.finished_at is not None, "it has ended")
    assert_equal(await claim(store, 9), [], "it does not run")


async def case_completed_while_it_runs(store: Storage, clock: MovableClock) -> None:
    held = await enqueue_and_claim(store)
    await report(store, held.id, Completed("1"))
    assert_refused(await apply_report(store, held, Succeeded("2")), Refusal.COMPLETED, "the holder's report")
    assert_refused((await store.renew([held.hold]))[0], Refusal.COMPLETED, "a renewal")
    assert_equal((await read_job(store, held.id)).result, "1", "the result from outside stays")
    assert_accepted((await store.apply([decide(held, Stopped())]))[0], "the holder's last report")
