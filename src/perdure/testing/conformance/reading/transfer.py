"""export and restore: what is carried to another store arrives as it was, and saying it twice changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Deleted, Died, Failed, LeaseLapsed, Skipped, Succeeded
from perdure.core.record import Record
from perdure.core.retention import Retention
from perdure.errors import StoreError
from perdure.storage.contract import Filter, JobDump, KeptKey, Note, QueueSettings, Refusal, Started, Storage
from perdure.storage.rules.fairness import SHARE

from ..tools import (
    FORGET,
    LONG_ENOUGH,
    Hand,
    accepted,
    claim,
    fault,
    ids,
    job,
    refused,
    running,
    same,
    say,
    seen,
    told,
    unique,
    untouched,
)

ODD = 'k\x00 \U0001f511 "\\'


# ---- export ----------------------------------------------------------------------------------------
async def case_nothing(store: Storage, clock: Hand) -> None:
    same(await store.export(None, 9), [], "an empty store has nothing to carry")
    same(await store.export_keys(None, 9), ([], None), "nor keys")
    await store.restore([])
    await store.restore_keys([])


async def case_oldest_first_and_page_by_page(store: Storage, clock: Hand) -> None:
    everything = await filled(store, clock)
    wanted = sorted(everything, key=lambda record: (record.created_at, record.id))
    same(ids(await records(store)), ids(wanted), "in the order of created_at, then id, hidden ones too")
    for limit in (1, 2, 5):
        same(ids(await records(store, limit)), ids(wanted), f"pages of {limit} lead through all of them once")
    last = wanted[-1]
    same(await store.export((last.created_at, last.id), 9), [], "nothing comes after the last")


async def case_a_position_that_is_gone(store: Storage, clock: Hand) -> None:
    first, second, third = sorted([job() for _ in range(3)], key=lambda each: each.id)
    await store.enqueue([first, third])
    at = (await seen(store, first.id)).created_at
    same(ids(await records(store, after=(at, second.id))), [third.id], "a position need not be that of a job")
    same(ids(await records(store, after=(at - 1, third.id))), [first.id, third.id], "nor its instant")
    same(ids(await records(store, after=(at + 1, first.id))), [], "nothing later is there")


async def case_exporting_changes_nothing(store: Storage, clock: Hand) -> None:
    await filled(store, clock)
    before = await everything_in(store)
    same(await everything_in(store), before, "reading for a move leaves all as it is")


# ---- restore ---------------------------------------------------------------------------------------
async def case_every_field_and_line(store: Storage, clock: Hand) -> None:
    """Every state, hidden and held rows; what was taken out is put in again under other ids, and in place of itself."""
    await filled(store, clock)
    before = await carried(store)
    await store.restore(before)
    same(await carried(store), before, "a job that is put in place of itself is as it was")
    other = [_doubled(each) for each in before]
    await store.restore(other)
    wanted = sorted([*before, *other], key=lambda each: (each.record.created_at, each.record.id))
    same(await carried(store), wanted, "a job that is put on record anew is, field by field, what was given")
    for each in other:
        untouched(each.record, await seen(store, each.record.id), "a job that was carried")
        same(await store.log(each.record.id), list(each.lines), "with its log")


async def case_repeated(store: Storage, clock: Hand) -> None:
    await filled(store, clock)
    await store.restore([_doubled(each) for each in await carried(store)])
    before = await everything_in(store)
    await store.restore(before[0])
    same(await everything_in(store), before, "saying it again changes nothing, counts and depths neither")


async def case_what_is_on_record_is_replaced(store: Storage, clock: Hand) -> None:
    old = job(key="k", tags='["t"]')
    await store.enqueue([old])
    before = await seen(store, old.id)
    ended = msgspec.structs.replace(
        before, state=State.DEAD, version=7, attempt=3, failures=3, reason="because", finished_at=before.created_at + 5
    )
    await store.restore([JobDump(ended, ("one", "two"))])
    untouched(ended, await seen(store, old.id), "a job that was replaced")
    same(await store.log(old.id), ["one", "two"], "its log is replaced")
    same(await claim(store), [], "it stands no longer where it stood")
    same([row.depth for row in await store.queues()], [], "and waits no longer")
    same(await store.count(Filter(states=(State.DEAD,))), 1, "it is counted where it is now")
    same(await store.count(Filter()), 1, "and once")
    same(ids((await store.find(Filter(key="k"), 9, None))[0]), [old.id], "it is found by its key")
    await store.restore([JobDump(before)])
    same(ids(await claim(store)), [old.id], "it can be claimed where it waits again")
    same(await store.log(old.id), [], "and has no log")


async def case_it_lives_on(store: Storage, clock: Hand) -> None:
    """Jobs that were carried are claimed, promoted, reaped, expired and pruned as if they had always been there."""
    held = await running(store)
    ended = await running(store, retention=Retention.keep(age=2).text())
    await told(store, ended.id, Succeeded('"done"'))
    later, doomed = job(delay=9 * SECOND), job(expires=SECOND, waits=1)
    await store.enqueue([later, doomed])
    before = await carried(store)
    await emptied(store, before)
    await store.restore([_renamed(each) for each in before])
    same(await claim(store, 9), [], "what runs is not claimed again")
    accepted((await store.renew([_named(held).hold]))[0], "the renewal of a hold that was carried")
    clock.advance(10)
    same(ids(await store.expired(9)), [_id(doomed.id)], "what was not started in time is found")
    same(ids(await claim(store, 9)), [_id(later.id)], "what was due later is due")
    accepted(await say(store, _named(held), Succeeded("1")), "the word of the holder of a job that was carried")
    clock.advance(60)
    same(ids(await store.lapsed(9, LONG_ENOUGH)), [_id(later.id)], "a lease ends")
    same(await store.prune(9), 1, "what was kept long enough is taken away")


async def case_a_parent_is_kept_for_its_followers(store: Storage, clock: Hand) -> None:
    """What a follower is to read of those it waited for is there when it runs at last."""
    parent = await running(store, retention=FORGET)
    first, other = (job(waits=1, after=json.dumps([parent.id])) for _ in range(2))
    await store.enqueue([first, other])
    await told(store, parent.id, Succeeded("7"))
    await told(store, other.id, Cancelled())
    before = await carried(store)
    followers = {each.record.id: each.kept_for for each in before if each.kept_for}
    same(followers, {parent.id: (first.id,)}, "a job is carried with those that waited for it and have not ended")
    await emptied(store, before)
    await store.restore([_renamed(each) for each in before])
    clock.advance(3600)
    await store.prune(99)
    same((await seen(store, _id(parent.id))).result, "7", "a parent that was carried stays for its follower")
    (record,) = await claim(store, 9)
    accepted(await say(store, record, Succeeded()), "the follower's word")
    clock.advance(3600)
    await store.prune(99)
    same(await store.get([_id(parent.id)]), [None], "then it goes")


async def case_order_is_kept(store: Storage, clock: Hand) -> None:
    jobs = [job(priority=number % 3, queue=f"q{number % 2}") for number in range(9)]
    await store.enqueue(jobs)
    before = await carried(store)
    wanted = [_id(each.record.id) for each in before]
    await emptied(store, before)
    await store.restore([_renamed(each) for each in reversed(before)])
    best = sorted(before, key=lambda each: (-each.record.priority, each.record.rank, _id(each.record.id)))
    same(ids(await claim(store, 99)), [_id(each.record.id) for each in best], "claimed in the order of a claim")
    same(sorted(wanted), sorted(ids((await store.find(Filter(), 99, None))[0])), "nothing more, nothing less is there")


async def case_turns_in_a_fair_queue_go_on(store: Storage, clock: Hand) -> None:
    """A queue that was not here before stands for another store."""
    for queue in ("here", "there"):
        await store.configure(QueueSettings(queue, fair=True))
    await store.enqueue(
        [job(queue="here", tenant=tenant, priority=-7) for tenant in ("big/1", "big/2", "big/1", "small")]
    )
    moved = [_renamed(each) for each in await carried(store)]
    there = [
        msgspec.structs.replace(each, record=msgspec.structs.replace(each.record, queue="there")) for each in moved
    ]
    await store.restore(there)
    late = job(queue="there", tenant="big", priority=-7)
    await store.enqueue([late])
    await store.restore(there)
    later = job(queue="there", tenant="big", priority=-7)
    await store.enqueue([later])
    last = max(each.record.rank for each in there)
    ranks = [(await seen(store, each.id)).rank for each in (late, later)]
    same(
        ranks, [last + SHARE, last + 2 * SHARE], "a tenant goes on behind its jobs that were carried, and behind others"
    )


async def case_a_full_queue_takes_them(store: Storage, clock: Hand) -> None:
    await store.configure(QueueSettings("default", max_depth=1))
    await store.enqueue([job()])
    (one,) = await carried(store)
    await store.restore([_renamed(one)])
    same((await store.queues())[0].depth, 2, "bounds are for those who enqueue")


# ---- keys ------------------------------------------------------------------------------------------
async def case_held_keys_are_held(store: Storage, clock: Hand) -> None:
    waiting, active = unique("waiting", ODD), unique("active", "a")
    await store.enqueue([waiting, active])
    before = await carried(store)
    await emptied(store, before)
    await store.restore([_renamed(each) for each in before])
    placed = await store.enqueue([unique("waiting", ODD), unique("active", "a")])
    same([each.id for each in placed], [_id(waiting.id), _id(active.id)], "the keys are held by those who came")
    await claim(store, 9)
    placed = await store.enqueue([unique("waiting", ODD), unique("active", "a")])
    same([each.duplicate for each in placed], [False, True], "and freed as always: waiting by the claim, active not")


async def case_a_key_that_another_holds(store: Storage, clock: Hand) -> None:
    await store.enqueue([unique("active", "a")])
    (owner,) = await carried(store)
    plain = job()
    await store.enqueue([plain])
    moved = JobDump(msgspec.structs.replace(await seen(store, plain.id), version=9))
    try:
        await store.restore([moved, _renamed(owner)])
    except StoreError:
        pass
    else:
        raise AssertionError("a key that another job holds cannot be brought: StoreError")
    same(await carried(store), [owner, JobDump(await seen(store, plain.id))], "nothing of the list was written")
    same((await seen(store, plain.id)).version, 1, "not even what came before it")


async def case_a_key_handed_on_inside_a_list(store: Storage, clock: Hand) -> None:
    old, new = unique("active", "a"), unique("active", "a")
    await store.enqueue([old])
    (holding,) = await carried(store)
    ended = msgspec.structs.replace(
        holding.record, state=State.CANCELLED, holds_key=False, version=2, finished_at=holding.record.created_at
    )
    taker = msgspec.structs.replace(holding.record, id=new.id)
    await store.restore([JobDump(taker), JobDump(ended)])
    (placed,) = await store.enqueue([unique("active", "a")])
    same(placed.id, new.id, "what a replaced job gave up, another of the list may hold")


async def case_kept_keys(store: Storage, clock: Hand) -> None:
    ever, brief = unique("any", ODD), unique("window", "w", unique_window=9 * SECOND)
    await store.enqueue([ever, brief])
    kept = await kept_keys(store)
    ends = (await seen(store, brief.id)).created_at + 9 * SECOND
    same(kept, {ODD: KeptKey(ODD, ever.id), "w": KeptKey("w", brief.id, ends)}, "each with its job and its end")
    for limit in (1, 2):
        same(await kept_keys(store, limit), kept, f"pages of {limit} lead through all of them")
    strange = [KeptKey("new", _id(ever.id)), KeptKey("w", _id(brief.id), ends + SECOND)]
    for _ in range(2):
        await store.restore_keys(strange)
        same(await kept_keys(store), {**kept, "new": strange[0], "w": strange[1]}, "written in place of what was known")
    asked = [unique("any", "new"), unique("window", "w", unique_window=SECOND), unique("any", ODD)]
    placed = await store.enqueue(asked)
    same([each.id for each in placed], [_id(ever.id), _id(brief.id), ever.id], "they belong to whom they were given")
    clock.advance(10)
    placed = await store.enqueue([unique("window", "w", unique_window=SECOND)])
    same(placed[0].duplicate, False, "until they end")
    same((await kept_keys(store))["w"].job, placed[0].id, "then the next one's job is told of")


async def case_a_hold_that_was_carried_is_fenced(store: Storage, clock: Hand) -> None:
    held = await running(store)
    (before,) = await carried(store)
    await told(store, held.id, Cancelled())
    await store.restore(await carried(store))
    refused(await say(store, before.record, Succeeded()), Refusal.CANCELLED, "the word about a job that was cancelled")


# ---- tools -----------------------------------------------------------------------------------------
async def filled(store: Storage, clock: Hand) -> list[Record]:
    """A store with a job of every kind there is; gives the rows."""
    await store.configure(QueueSettings("bounded", max_depth=9))
    parents = [job(queue="a"), job(delay=99 * SECOND)]
    first = [*parents, job(waits=2, after=json.dumps(ids(parents)))]
    odd = job(
        task="odd", queue="bounded", payload='{"a":"\\u0000 é"}', key=ODD, tenant="acme/1", routing_key="vector",
        tags='["t","é"]', meta='{"m":"1"}', chain_id=first[0].id, limits='[["l",1]]', run_when="finished", max_attempts=None,
        timeout=None, lease=5 * SECOND, expires=999 * SECOND, priority=-7, min_version=200,
    )  # fmt: skip
    await store.enqueue([*first, odd])
    clock.advance(1)
    names = ("held", "succeeded", "skipped", "dead", "cancelled", "deleted", "forgotten", "failed", "unheard")
    runs = {name: job(queue="b", task=name, **_how(name)) for name in names}
    await store.enqueue(list(runs.values()))
    rows = {record.task: record for record in await claim(store, 99, queues=("b",))}
    await store.note([Note(rows["held"].hold, '{"done": 1}', ("first\x00", "zweite ä"))])
    await store.note([Note(rows["succeeded"].hold, None, ("done",))])
    await store.renew([], [Started(rows["held"].hold, rows["held"].created_at + 3)])
    await told(store, rows["succeeded"].id, Succeeded('{"é": 1}'))
    await told(store, rows["skipped"].id, Skipped("no need\x00"))
    await told(store, rows["dead"].id, Died("hopeless", fault()))
    await told(store, rows["cancelled"].id, Cancelled())  # its holder goes on
    await told(store, rows["deleted"].id, Deleted())  # hidden, and its holder goes on
    await told(store, rows["forgotten"].id, Succeeded())  # hidden
    await told(store, rows["failed"].id, Failed(fault(ODD), delay=SECOND))
    await told(store, rows["unheard"].id, LeaseLapsed(suspect=True))
    clock.advance(1)
    released = job(queue="c", waits=1, after=json.dumps([rows["succeeded"].id]))
    keys = [unique("waiting", ODD), unique("active"), unique("any"), unique("window", "w", unique_window=SECOND)]
    last = [job(), released, *keys]
    await store.enqueue(last)
    return [await seen(store, each.id) for each in (*first, odd, *runs.values(), *last)]


def _how(name: str) -> dict[str, Any]:
    if name == "forgotten":
        return {"retention": FORGET}
    if name == "unheard":
        return {"lease": 0}
    return {"retention": Retention.keep(last=3).text()} if name == "succeeded" else {}


async def carried(store: Storage, limit: int = 100, after: tuple[int, str] | None = None) -> list[JobDump]:
    """Everything, page by page."""
    found: list[JobDump] = []
    while page := await store.export(after, limit):
        found += page
        after = (page[-1].record.created_at, page[-1].record.id)
    return found


async def records(store: Storage, limit: int = 100, after: tuple[int, str] | None = None) -> list[Record]:
    return [each.record for each in await carried(store, limit, after)]


async def kept_keys(store: Storage, limit: int = 100) -> dict[str, KeptKey]:
    found: dict[str, KeptKey] = {}
    cursor: str | None = None
    while True:
        page, cursor = await store.export_keys(cursor, limit)
        found |= {kept.key: kept for kept in page}
        if cursor is None:
            return found


async def everything_in(store: Storage) -> tuple[list[JobDump], object, object, object]:
    counts = {state: await store.count(Filter(states=(state,))) for state in State}
    return await carried(store), await kept_keys(store), await store.queues(), counts


async def emptied(store: Storage, jobs: Sequence[JobDump]) -> None:
    """End and hide these jobs, so that nothing but what is brought can be claimed; they hold no keys any more."""
    for each in jobs:
        hidden = msgspec.structs.replace(
            each.record, state=State.CANCELLED, hidden=True, holds_key=False, stamp=None, leased_by=None,
            leased_until=None, finished_at=each.record.created_at, prune_at=each.record.created_at + 10**15,
        )  # fmt: skip
        await store.restore([JobDump(hidden)])


def _id(id: str) -> str:
    """Another id for a job, the same each time, in the same order."""
    return f"{int(id[0], 16) ^ 8:x}{id[1:]}"


def _named(record: Record) -> Record:
    return msgspec.structs.replace(record, id=_id(record.id))


def _renamed(each: JobDump) -> JobDump:
    waits_for, kept_for = (tuple(sorted(map(_id, ids))) for ids in (each.waits_for, each.kept_for))
    return JobDump(_named(each.record), each.lines, waits_for, kept_for)


def _doubled(each: JobDump) -> JobDump:
    """The same under another id, and with a key of its own."""
    moved = _renamed(each)
    key = moved.record.unique_key and f"{moved.record.unique_key}+"
    return msgspec.structs.replace(moved, record=msgspec.structs.replace(moved.record, unique_key=key))
