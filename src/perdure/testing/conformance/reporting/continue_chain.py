"""continuing: a change that puts jobs on record, and completion from outside."""

from __future__ import annotations

import json

import msgspec

from perdure.core.job import State
from perdure.core.lifecycle import Completed, Continued, Stopped, Succeeded, decide
from perdure.storage.contract import MissingParent, QueueSettings, Refusal, Storage

from ..tools import Hand, accepted, claim, ids, job, refused, repeated, running, same, say, seen, told, true, unique


async def case_done_and_the_next_one_there(store: Storage, clock: Hand) -> None:
    first = await running(store)
    following = job(chain_id=first.id)
    row = await told(store, first.id, Continued((following,)))
    same((row.state, row.next_id, row.result), (State.SUCCEEDED, following.id, None), "the first is done")
    same((await seen(store, following.id)).state, State.READY, "the next is there")
    same(ids(await claim(store, 9)), [following.id], "and can be claimed")


async def case_a_refused_word_adds_nothing(store: Storage, clock: Hand) -> None:
    first = await running(store)
    following = job(chain_id=first.id)
    zombie = msgspec.structs.replace(first, stamp=(first.stamp or 0) + 1)
    refused(await say(store, zombie, Continued((following,))), Refusal.TAKEN, "a stale holder")
    same(await store.get([following.id]), [None], "nothing was put on record")


async def case_a_repeated_word_adds_nothing_twice(store: Storage, clock: Hand) -> None:
    first = await running(store)
    following = job(chain_id=first.id)
    change = decide(first, Continued((following,)))
    accepted((await store.apply([change]))[0], "the first time")
    before = await seen(store, following.id)
    repeated((await store.apply([change]))[0], "the second time")
    same(await seen(store, following.id), before, "the next job is left as it is")


async def case_several_are_added(store: Storage, clock: Hand) -> None:
    first = await running(store)
    one = job()
    two = job(after=json.dumps([one.id]), waits=1)
    change = msgspec.structs.replace(decide(first, Succeeded("1")), adds=(two, one), next_id=two.id)
    accepted((await store.apply([change]))[0], "a change that adds a flow")
    same([(await seen(store, each.id)).state for each in (one, two)], [State.READY, State.BLOCKED], "with its edges")
    same((await seen(store, first.id)).next_id, two.id, "next_id is what the change says")


async def case_an_orphan_stops_the_call(store: Storage, clock: Hand) -> None:
    first, other = await running(store), await running(store)
    orphan = job(after=json.dumps([job().id]), waits=1)
    bad = msgspec.structs.replace(decide(first, Succeeded()), adds=(orphan,))
    try:
        await store.apply([decide(other, Succeeded()), bad])
    except MissingParent:
        pass
    else:
        raise AssertionError("a change that adds an orphan must raise Orphan")
    found = [(await seen(store, each.id)).state for each in (first, other)]
    same(found, [State.RUNNING, State.RUNNING], "nothing of the call is written")


async def case_bounds_do_not_stop_a_chain(store: Storage, clock: Hand) -> None:
    await store.enqueue([job(queue="q")])
    for on_full in ("reject", "wait", "drop"):
        first = await running(store)
        await store.configure(QueueSettings("q", max_depth=1, on_full=on_full))
        following = job(queue="q")
        await told(store, first.id, Continued((following,)))
        same((await seen(store, following.id)).state, State.READY, f"a chain goes on in a full queue: {on_full}")


async def case_unique_keys_hold(store: Storage, clock: Hand) -> None:
    for scope in ("active", "any"):
        first = await running(store)
        owner, following = unique(scope, queue="later"), unique(scope)
        await store.enqueue([owner])
        row = await told(store, first.id, Continued((job(), following)))
        same(row.state, State.SUCCEEDED, "the first is done")
        same(await store.get([following.id]), [None], "the next would be a duplicate")
        same(row.next_id, owner.id, "the chain goes on with the one that has its key")


async def case_followers_go_on_with_the_owner_of_a_key(store: Storage, clock: Hand) -> None:
    first = await running(store)
    owner, child = unique("active", queue="later"), job(after=json.dumps([first.id]), waits=1)
    await store.enqueue([owner, child])
    await told(store, first.id, Continued((unique("active"),)))
    while await store.resolve_edges(500):
        pass
    same((await seen(store, child.id)).state, State.BLOCKED, "the chain goes on")
    await told(store, owner.id, Completed("1"))
    while await store.resolve_edges(500):
        pass
    same((await seen(store, child.id)).state, State.READY, "and has ended with the owner")


async def case_a_key_that_is_handed_on(store: Storage, clock: Hand) -> None:
    new = unique("active")
    await store.enqueue([new])
    (first,) = await claim(store, 1)
    following = unique("active")
    row = await told(store, first.id, Continued((following,)))
    same(row.next_id, following.id, "the key was free when its job had ended")
    same((await seen(store, following.id)).state, State.READY, "the next is there")


async def case_in_a_handlers_transaction(store: Storage, clock: Hand) -> None:
    from ..tools import begin

    first = await running(store)
    transaction = await begin(store)
    following = job(chain_id=first.id)
    accepted(await transaction.complete(decide(first, Continued((following,)))), "the completion")
    same([(await seen(store, each.id)).state for each in (first, following)], [State.SUCCEEDED, State.READY], "both")


async def case_completed_from_outside(store: Storage, clock: Hand) -> None:
    waiting, later = job(), job(delay=99)
    await store.enqueue([waiting, later])
    for new in (waiting, later):
        row = await told(store, new.id, Completed('{"by":"hand"}'))
        same((row.state, row.result), (State.SUCCEEDED, '{"by":"hand"}'), "somebody else has done it")
        true(row.finished_at is not None, "it has ended")
    same(await claim(store, 9), [], "it does not run")


async def case_completed_while_it_runs(store: Storage, clock: Hand) -> None:
    held = await running(store)
    await told(store, held.id, Completed("1"))
    refused(await say(store, held, Succeeded("2")), Refusal.COMPLETED, "the holder's word")
    refused((await store.renew([held.hold]))[0], Refusal.COMPLETED, "a renewal")
    same((await seen(store, held.id)).result, "1", "the outside result stands")
    accepted((await store.apply([decide(held, Stopped())]))[0], "the holder's last word")
