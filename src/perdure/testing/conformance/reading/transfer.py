"""export and restore: a job arrives unchanged at another store, and restoring it twice changes nothing."""

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
    MovableClock,
    apply_report,
    assert_accepted,
    assert_equal,
    assert_refused,
    assert_unchanged,
    claim,
    enqueue_and_claim,
    fault,
    ids,
    job,
    read_job,
    report,
    unique,
)

ODD = 'k\x00 \U0001f511 "\\'


# ---- export ----------------------------------------------------------------------------------------
async def case_nothing(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.export(None, 9), [], "an empty store has nothing to carry")
    assert_equal(await store.export_keys(None, 9), ([], None), "nor keys")
    await store.restore([])
    await store.restore_keys([])


async def case_oldest_first_and_page_by_page(store: Storage, clock: MovableClock) -> None:
    everything = await store_every_kind(store, clock)
    wanted = sorted(everything, key=lambda record: (record.created_at, record.id))
    assert_equal(ids(await records(store)), ids(wanted), "in the order of created_at, then id, hidden ones too")
    for limit in (1, 2, 5):
        assert_equal(ids(await records(store, limit)), ids(wanted), f"pages of {limit} lead through all of them once")
    last = wanted[-1]
    assert_equal(await store.export((last.created_at, last.id), 9), [], "nothing comes after the last")


async def case_a_position_that_was_removed(store: Storage, clock: MovableClock) -> None:
    first, second, third = sorted([job() for _ in range(3)], key=lambda each: each.id)
    await store.enqueue([first, third])
    at = (await read_job(store, first.id)).created_at
    assert_equal(ids(await records(store, after=(at, second.id))), [third.id], "a position need not be that of a job")
    assert_equal(ids(await records(store, after=(at - 1, third.id))), [first.id, third.id], "nor its instant")
    assert_equal(ids(await records(store, after=(at + 1, first.id))), [], "nothing later is there")


async def case_exporting_changes_nothing(store: Storage, clock: MovableClock) -> None:
    await store_every_kind(store, clock)
    before = await everything_in(store)
    assert_equal(await everything_in(store), before, "reading for a move leaves all as it is")


# ---- restore ---------------------------------------------------------------------------------------
async def case_every_field_and_line(store: Storage, clock: MovableClock) -> None:
    """Export jobs in every state, hidden and held ones too. Restore them under other ids, and in place of themselves."""
    await store_every_kind(store, clock)
    before = await export_all(store)
    await store.restore(before)
    assert_equal(await export_all(store), before, "a job that is put in place of itself is as it was")
    other = [_copy(each) for each in before]
    await store.restore(other)
    wanted = sorted([*before, *other], key=lambda each: (each.record.created_at, each.record.id))
    assert_equal(await export_all(store), wanted, "a restored job has every field of its dump")
    for each in other:
        assert_unchanged(each.record, await read_job(store, each.record.id), "a job that was carried")
        assert_equal(await store.log(each.record.id), list(each.lines), "with its log")


async def case_repeated(store: Storage, clock: MovableClock) -> None:
    await store_every_kind(store, clock)
    await store.restore([_copy(each) for each in await export_all(store)])
    before = await everything_in(store)
    await store.restore(before[0])
    assert_equal(await everything_in(store), before, "saying it again changes nothing, counts and depths neither")


async def case_a_stored_job_is_replaced(store: Storage, clock: MovableClock) -> None:
    old = job(key="k", tags='["t"]')
    await store.enqueue([old])
    before = await read_job(store, old.id)
    ended = msgspec.structs.replace(
        before, state=State.DEAD, version=7, attempt=3, failures=3, reason="because", finished_at=before.created_at + 5
    )
    await store.restore([JobDump(ended, ("one", "two"))])
    assert_unchanged(ended, await read_job(store, old.id), "a job that was replaced")
    assert_equal(await store.log(old.id), ["one", "two"], "its log is replaced")
    assert_equal(await claim(store), [], "it is no longer in its old position")
    assert_equal([row.depth for row in await store.queues()], [], "and waits no longer")
    assert_equal(await store.count(Filter(states=(State.DEAD,))), 1, "it is counted where it is now")
    assert_equal(await store.count(Filter()), 1, "and once")
    assert_equal(ids((await store.find(Filter(key="k"), 9, None))[0]), [old.id], "it is found by its key")
    await store.restore([JobDump(before)])
    assert_equal(ids(await claim(store)), [old.id], "it can be claimed where it waits again")
    assert_equal(await store.log(old.id), [], "and has no log")


async def case_it_lives_on(store: Storage, clock: MovableClock) -> None:
    """Restored jobs are claimed, promoted, reaped, expired and pruned like any others."""
    held = await enqueue_and_claim(store)
    ended = await enqueue_and_claim(store, retention=Retention.keep(age=2).text())
    await report(store, ended.id, Succeeded('"done"'))
    later, doomed = job(delay=9 * SECOND), job(expires=SECOND, waits=1)
    await store.enqueue([later, doomed])
    before = await export_all(store)
    await hide_all(store, before)
    await store.restore([_rename(each) for each in before])
    assert_equal(await claim(store, 9), [], "what runs is not claimed again")
    assert_accepted((await store.renew([_with_new_id(held).hold]))[0], "the renewal of a hold that was carried")
    clock.advance(10)
    assert_equal(ids(await store.expired(9)), [_id(doomed.id)], "what was not started in time is found")
    assert_equal(ids(await claim(store, 9)), [_id(later.id)], "what was due later is due")
    assert_accepted(
        await apply_report(store, _with_new_id(held), Succeeded("1")), "the report of the holder of a restored job"
    )
    clock.advance(60)
    assert_equal(ids(await store.lapsed(9, LONG_ENOUGH)), [_id(later.id)], "a lease ends")
    assert_equal(await store.prune(9), 1, "jobs past their retention are pruned")


async def case_a_parent_is_kept_for_its_followers(store: Storage, clock: MovableClock) -> None:
    """A follower can read the results of its parents when it runs."""
    parent = await enqueue_and_claim(store, retention=FORGET)
    first, other = (job(waits=1, after=json.dumps([parent.id])) for _ in range(2))
    await store.enqueue([first, other])
    await report(store, parent.id, Succeeded("7"))
    await report(store, other.id, Cancelled())
    before = await export_all(store)
    followers = {each.record.id: each.kept_for for each in before if each.kept_for}
    assert_equal(
        followers, {parent.id: (first.id,)}, "a job is carried with those that waited for it and have not ended"
    )
    await hide_all(store, before)
    await store.restore([_rename(each) for each in before])
    clock.advance(3600)
    await store.prune(99)
    assert_equal(
        (await read_job(store, _id(parent.id))).result, "7", "a parent that was carried stays for its follower"
    )
    (record,) = await claim(store, 9)
    assert_accepted(await apply_report(store, record, Succeeded()), "the follower's report")
    clock.advance(3600)
    await store.prune(99)
    assert_equal(await store.get([_id(parent.id)]), [None], "then it is removed")


async def case_order_is_kept(store: Storage, clock: MovableClock) -> None:
    jobs = [job(priority=number % 3, queue=f"q{number % 2}") for number in range(9)]
    await store.enqueue(jobs)
    before = await export_all(store)
    wanted = [_id(each.record.id) for each in before]
    await hide_all(store, before)
    await store.restore([_rename(each) for each in reversed(before)])
    best = sorted(before, key=lambda each: (-each.record.priority, each.record.rank, _id(each.record.id)))
    assert_equal(ids(await claim(store, 99)), [_id(each.record.id) for each in best], "claimed in the order of a claim")
    assert_equal(
        sorted(wanted), sorted(ids((await store.find(Filter(), 99, None))[0])), "nothing more, nothing less is there"
    )


async def case_turns_in_a_fair_queue_go_on(store: Storage, clock: MovableClock) -> None:
    """A queue that did not exist before represents another store."""
    for queue in ("here", "there"):
        await store.configure(QueueSettings(queue, fair=True))
    await store.enqueue(
        [job(queue="here", tenant=tenant, priority=-7) for tenant in ("big/1", "big/2", "big/1", "small")]
    )
    moved = [_rename(each) for each in await export_all(store)]
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
    ranks = [(await read_job(store, each.id)).rank for each in (late, later)]
    assert_equal(
        ranks, [last + SHARE, last + 2 * SHARE], "a tenant's next job ranks behind its restored jobs, and behind others"
    )


async def case_a_full_queue_takes_them(store: Storage, clock: MovableClock) -> None:
    await store.configure(QueueSettings("default", max_depth=1))
    await store.enqueue([job()])
    (one,) = await export_all(store)
    await store.restore([_rename(one)])
    assert_equal((await store.queues())[0].depth, 2, "bounds are for those who enqueue")


# ---- keys ------------------------------------------------------------------------------------------
async def case_held_keys_are_held(store: Storage, clock: MovableClock) -> None:
    waiting, active = unique("waiting", ODD), unique("active", "a")
    await store.enqueue([waiting, active])
    before = await export_all(store)
    await hide_all(store, before)
    await store.restore([_rename(each) for each in before])
    stored = await store.enqueue([unique("waiting", ODD), unique("active", "a")])
    assert_equal([each.id for each in stored], [_id(waiting.id), _id(active.id)], "the keys are held by those who came")
    await claim(store, 9)
    stored = await store.enqueue([unique("waiting", ODD), unique("active", "a")])
    assert_equal(
        [each.duplicate for each in stored], [False, True], "and freed as always: waiting by the claim, active not"
    )


async def case_a_key_that_another_holds(store: Storage, clock: MovableClock) -> None:
    await store.enqueue([unique("active", "a")])
    (owner,) = await export_all(store)
    plain = job()
    await store.enqueue([plain])
    moved = JobDump(msgspec.structs.replace(await read_job(store, plain.id), version=9))
    try:
        await store.restore([moved, _rename(owner)])
    except StoreError:
        pass
    else:
        raise AssertionError("a key that another job holds cannot be brought: StoreError")
    assert_equal(
        await export_all(store), [owner, JobDump(await read_job(store, plain.id))], "nothing of the list was written"
    )
    assert_equal((await read_job(store, plain.id)).version, 1, "not even what came before it")


async def case_a_key_handed_on_inside_a_list(store: Storage, clock: MovableClock) -> None:
    old, new = unique("active", "a"), unique("active", "a")
    await store.enqueue([old])
    (holding,) = await export_all(store)
    ended = msgspec.structs.replace(
        holding.record, state=State.CANCELLED, holds_key=False, version=2, finished_at=holding.record.created_at
    )
    taker = msgspec.structs.replace(holding.record, id=new.id)
    await store.restore([JobDump(taker), JobDump(ended)])
    (stored,) = await store.enqueue([unique("active", "a")])
    assert_equal(stored.id, new.id, "what a replaced job gave up, another of the list may hold")


async def case_kept_keys(store: Storage, clock: MovableClock) -> None:
    ever, brief = unique("any", ODD), unique("window", "w", unique_window=9 * SECOND)
    await store.enqueue([ever, brief])
    kept = await export_keys(store)
    ends = (await read_job(store, brief.id)).created_at + 9 * SECOND
    assert_equal(kept, {ODD: KeptKey(ODD, ever.id), "w": KeptKey("w", brief.id, ends)}, "each with its job and its end")
    for limit in (1, 2):
        assert_equal(await export_keys(store, limit), kept, f"pages of {limit} lead through all of them")
    strange = [KeptKey("new", _id(ever.id)), KeptKey("w", _id(brief.id), ends + SECOND)]
    for _ in range(2):
        await store.restore_keys(strange)
        assert_equal(
            await export_keys(store), {**kept, "new": strange[0], "w": strange[1]}, "written in place of what was known"
        )
    asked = [unique("any", "new"), unique("window", "w", unique_window=SECOND), unique("any", ODD)]
    stored = await store.enqueue(asked)
    assert_equal(
        [each.id for each in stored],
        [_id(ever.id), _id(brief.id), ever.id],
        "keys belong to the jobs they were restored for",
    )
    clock.advance(10)
    stored = await store.enqueue([unique("window", "w", unique_window=SECOND)])
    assert_equal(stored[0].duplicate, False, "until they end")
    assert_equal((await export_keys(store))["w"].job, stored[0].id, "then the next job of the key is returned")


async def case_a_restored_hold_is_fenced(store: Storage, clock: MovableClock) -> None:
    held = await enqueue_and_claim(store)
    (before,) = await export_all(store)
    await report(store, held.id, Cancelled())
    await store.restore(await export_all(store))
    assert_refused(
        await apply_report(store, before.record, Succeeded()),
        Refusal.CANCELLED,
        "the report about a cancelled job",
    )


# ---- tools -----------------------------------------------------------------------------------------
async def store_every_kind(store: Storage, clock: MovableClock) -> list[Record]:
    """Store a job of every kind and return the rows."""
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
    await report(store, rows["succeeded"].id, Succeeded('{"é": 1}'))
    await report(store, rows["skipped"].id, Skipped("no need\x00"))
    await report(store, rows["dead"].id, Died("hopeless", fault()))
    await report(store, rows["cancelled"].id, Cancelled())  # its holder continues
    await report(store, rows["deleted"].id, Deleted())  # hidden, and its holder continues
    await report(store, rows["forgotten"].id, Succeeded())  # hidden
    await report(store, rows["failed"].id, Failed(fault(ODD), delay=SECOND))
    await report(store, rows["unheard"].id, LeaseLapsed(suspect=True))
    clock.advance(1)
    released = job(queue="c", waits=1, after=json.dumps([rows["succeeded"].id]))
    keys = [unique("waiting", ODD), unique("active"), unique("any"), unique("window", "w", unique_window=SECOND)]
    last = [job(), released, *keys]
    await store.enqueue(last)
    return [await read_job(store, each.id) for each in (*first, odd, *runs.values(), *last)]


def _how(name: str) -> dict[str, Any]:
    if name == "forgotten":
        return {"retention": FORGET}
    if name == "unheard":
        return {"lease": 0}
    return {"retention": Retention.keep(last=3).text()} if name == "succeeded" else {}


async def export_all(store: Storage, limit: int = 100, after: tuple[int, str] | None = None) -> list[JobDump]:
    """Export everything, page by page."""
    found: list[JobDump] = []
    while page := await store.export(after, limit):
        found += page
        after = (page[-1].record.created_at, page[-1].record.id)
    return found


async def records(store: Storage, limit: int = 100, after: tuple[int, str] | None = None) -> list[Record]:
    return [each.record for each in await export_all(store, limit, after)]


async def export_keys(store: Storage, limit: int = 100) -> dict[str, KeptKey]:
    found: dict[str, KeptKey] = {}
    cursor: str | None = None
    while True:
        page, cursor = await store.export_keys(cursor, limit)
        found |= {kept.key: kept for kept in page}
        if cursor is None:
            return found


async def everything_in(store: Storage) -> tuple[list[JobDump], object, object, object]:
    counts = {state: await store.count(Filter(states=(state,))) for state in State}
    return await export_all(store), await export_keys(store), await store.queues(), counts


async def hide_all(store: Storage, jobs: Sequence[JobDump]) -> None:
    """End and hide these jobs, so that only restored jobs can be claimed and no keys are held."""
    for each in jobs:
        hidden = msgspec.structs.replace(
            each.record, state=State.CANCELLED, hidden=True, holds_key=False, stamp=None, leased_by=None,
            leased_until=None, finished_at=each.record.created_at, prune_at=each.record.created_at + 10**15,
        )  # fmt: skip
        await store.restore([JobDump(hidden)])


def _id(id: str) -> str:
    """Another id for a job. It is the same every time and keeps the order."""
    return f"{int(id[0], 16) ^ 8:x}{id[1:]}"


def _with_new_id(record: Record) -> Record:
    return msgspec.structs.replace(record, id=_id(record.id))


def _rename(each: JobDump) -> JobDump:
    waits_for, kept_for = (tuple(sorted(map(_id, ids))) for ids in (each.waits_for, each.kept_for))
    return JobDump(_with_new_id(each.record), each.lines, waits_for, kept_for)


def _copy(each: JobDump) -> JobDump:
    """The same dump with another id and its own key."""
    moved = _rename(each)
    key = moved.record.unique_key and f"{moved.record.unique_key}+"
    return msgspec.structs.replace(moved, record=msgspec.structs.replace(moved.record, unique_key=key))
