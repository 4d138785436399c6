"""Unreadable rows: a row with values that no version of Perdure writes stops nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.clock import SECOND
from perdure.core.job import State
from perdure.core.lifecycle import Cancelled, Retried, Succeeded, decide
from perdure.core.record import NewJob, Record, unreadable_fields
from perdure.errors import IllegalMove, StoreError
from perdure.storage.contract import Filter, JobDump, QueueSettings, Storage
from perdure.storage.rules.limits import StoredLimit

from ..tools import (
    LONG_ENOUGH,
    MovableClock,
    NotOffered,
    apply_report,
    assert_equal,
    assert_true,
    claim,
    enqueue_and_claim,
    ids,
    job,
    read_job,
)

LIMITS = msgspec.json.encode([StoredLimit("k", 5)]).decode()
TOO_LARGE = (1 << 63) - 1
LARGEST_OF_32_BITS = (1 << 31) - 1
# values that every store can hold and that no reader may fail on
TEXTS: dict[str, str] = {
    "backoff": "no backoff",
    "retention": "{",
    "dead_retention": "[1, 2]",
    "errors": '{"not":"a list"}',
    "progress": "[1,",
    "tags": '"no list"',
    "meta": "[]",
    "after": '"no list"',
    "run_when": "whenever",
    "unique_scope": "somewhere",
}
COUNTERS = ("version", "attempt", "failures", "losses")  # a store may keep these in 32 bits
NUMBERS: dict[str, int] = dict.fromkeys((*COUNTERS, "timeout", "lease"), TOO_LARGE)
FLAWS: dict[str, Any] = {**TEXTS, **NUMBERS}


async def plant(store: Storage, new: NewJob, **flaws: Any) -> None:
    """Store a job with values that `enqueue` would refuse."""
    if type(store).inspect is Storage.inspect:
        raise NotOffered(f"{store.name} does not set rows aside yet")
    await store.enqueue([new])
    await spoil(store, new.id, **flaws)


async def spoil(store: Storage, id: str, **flaws: Any) -> None:
    """Set fields of a stored job to values that no verb writes."""
    (carried,) = [each for each in await store.export(None, 1000) if each.record.id == id]
    spoiled = msgspec.structs.replace(carried.record, **flaws)
    await store.restore([JobDump(spoiled, carried.lines, carried.waits_for, carried.kept_for)])


async def plant_largest(store: Storage, new: NewJob, counter: str) -> int:
    """Store a job with the largest value that the store can keep in this counter, and return the value. A store with 32 bits
    must refuse a larger one with an error that says that a retry is useless, and change nothing."""
    await plant(store, new)
    before = await read_job(store, new.id)
    try:
        await spoil(store, new.id, **{counter: TOO_LARGE})
    except StoreError as refused:
        assert_equal(type(refused), StoreError, f"a {counter} that does not fit is refused as such")
        assert_equal(await read_job(store, new.id), before, "a job that is refused leaves the one on record as it was")
        await spoil(store, new.id, **{counter: LARGEST_OF_32_BITS})
        return LARGEST_OF_32_BITS
    return TOO_LARGE


async def set_aside(store: Storage, id: str, *fields: str) -> Record:
    """Assert that the job is a dead letter with a reason."""
    record = await read_job(store, id)
    assert_equal(
        (record.state, record.stamp, record.leased_until), (State.DEAD, None, None), "a job that is set aside is dead"
    )
    assert_equal(unreadable_fields(record.reason), fields, "its reason names what could not be read")
    assert_true(record.finished_at is not None, "a job that is set aside has ended")
    kept = await store.unreadable([id])
    assert_equal([row.fields for row in kept], [fields], "the row as it was is kept")
    return record


async def case_a_claim_sets_it_aside(store: Storage, clock: MovableClock) -> None:
    for field, value in FLAWS.items():
        bad, good = job(), job()
        if field in COUNTERS:
            value = await plant_largest(store, bad, field)
        else:
            await plant(store, bad, **{field: value})
        await store.enqueue([good])
        claimed = ids(await claim(store, 10))
        if good.id not in claimed:
            claimed += ids(await claim(store, 10))
        assert_equal(
            claimed, [good.id], f"a claim passes over a job whose {field} cannot be read, and gives the others"
        )
        record = await set_aside(store, bad.id, field)
        assert_true(getattr(record, field) != value, f"its {field} has a neutral value")
        assert_equal(await claim(store, 10), [], "it is not claimed again")


async def case_what_was_stored_is_kept(store: Storage, clock: MovableClock) -> None:
    bad = job(payload='{"a":1}')
    await plant(store, bad, errors="broken")
    await claim(store, 10)
    (row,) = await store.unreadable()
    raw = msgspec.json.decode(row.raw)
    assert_equal((row.id, row.where, row.fields), (bad.id, "jobs", ("errors",)), "what was set aside")
    assert_equal((raw["payload"], raw["errors"]), ('{"a":1}', "broken"), "the row is kept as it was stored")


async def case_a_page_holds_the_others(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(5)]
    await store.enqueue(jobs[:2])
    await plant(store, jobs[2], errors="broken", meta="broken")
    await store.enqueue(jobs[3:])
    found, cursor = await store.find(Filter(), 9, None)
    assert_equal(
        (ids(found), cursor), (ids(reversed(jobs)), None), "a listing shows the readable jobs, and the others too"
    )
    marked = {record.id: unreadable_fields(record.reason) for record in found}
    assert_equal(marked[jobs[2].id], ("errors", "meta"), "a listing marks a job that cannot be read")
    assert_equal(found[2].state, State.READY, "a listing leaves its state: it was not set aside")
    assert_true(not any(marked[id] for id in ids(jobs) if id != jobs[2].id), "a listing marks no other")
    assert_equal(unreadable_fields((await read_job(store, jobs[2].id)).reason), ("errors", "meta"), "get marks it too")
    pages, cursor = [], None
    for _ in range(5):
        page, cursor = await store.find(Filter(), 1, cursor)
        pages += ids(page)
    assert_equal(pages, ids(reversed(jobs)), "pages follow each other over it")
    assert_equal(await store.unreadable(), [], "a listing only reads")


async def case_the_reaper_sets_it_aside(store: Storage, clock: MovableClock) -> None:
    for field, value in TEXTS.items():
        bad, good = job(), job()
        await plant(store, bad)
        await store.enqueue([good])
        assert_equal(len(await claim(store, 10)), 2, "both are claimed")
        await spoil(store, bad.id, **{field: value})
        clock.advance(120)
        assert_equal(
            ids(await store.lapsed(10, LONG_ENOUGH)), [good.id], f"who reaps meets a {field} that cannot be read"
        )
        await set_aside(store, bad.id, field)
        await spoil(store, good.id, state=State.SUCCEEDED, stamp=None, leased_by=None, leased_until=None, finished_at=1)


async def case_expiry_sets_it_aside(store: Storage, clock: MovableClock) -> None:
    bad, good = job(expires=SECOND), job(expires=SECOND)
    await plant(store, bad, retention="broken")
    await store.enqueue([good])
    clock.advance(2)
    assert_equal(ids(await store.expired(10)), [good.id], "an unreadable job does not stop the search for expired ones")
    await set_aside(store, bad.id, "retention")


async def case_a_lost_answer(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    bad = await enqueue_and_claim(store)
    await plant(store, job(delay=60 * SECOND))
    await spoil(store, bad.id, errors="broken")
    assert_true(bad.id not in ids(await store.recover_claim("w1", bad.stamp or 0)), "holding never hands it out")
    assert_equal(ids(await store.recover_claim("w1", record.stamp or 0)), [record.id], "holding gives the others")


async def case_followers_are_resolved(store: Storage, clock: MovableClock) -> None:
    parent = job()
    bad = job(after=f'["{parent.id}"]', waits=1)
    good = job(after=f'["{parent.id}"]', waits=1)
    await store.enqueue([parent])
    await plant(store, bad, retention="broken")
    await store.enqueue([good])
    (record,) = await claim(store, 1)
    await apply_report(store, record, Cancelled("no more"))
    for _ in range(3):
        await store.resolve_edges(100)
    assert_equal(
        (await read_job(store, good.id)).state, State.CANCELLED, "one follower that cannot be read holds up no other"
    )
    await set_aside(store, bad.id, "retention")


async def case_a_retry_without_what_was_lost(store: Storage, clock: MovableClock) -> None:
    bad = job()
    await plant(store, bad, errors="broken", backoff="broken")
    await claim(store, 10)
    record = await set_aside(store, bad.id, "backoff", "errors")
    assert_true(
        (await apply_report(store, record, Retried())).accepted, "it can be retried: nothing that it needs was lost"
    )
    assert_equal(ids(await claim(store, 10)), [bad.id], "and is claimed then")


async def case_no_retry_with_another_payload(store: Storage, clock: MovableClock) -> None:
    bad = job()
    await plant(store, bad, limits="broken", parked=True)
    while await store.inspect(100):
        pass
    record = await set_aside(store, bad.id, "limits")
    try:
        decide(record, Retried())
    except IllegalMove as refused:
        assert_true("limits" in str(refused), "the refusal names what was lost")
    else:
        raise AssertionError("a job whose limits are lost is not retried without them")


async def case_nothing_to_find(store: Storage, clock: MovableClock) -> None:
    await plant(store, job(delay=60 * SECOND))
    assert_equal(await store.inspect(100), 0, "an inspection of readable rows finds nothing")
    assert_equal(await store.unreadable(), [], "and sets nothing aside")


async def case_inspection(store: Storage, clock: MovableClock) -> None:
    parent = job(delay=60 * SECOND)
    await plant(store, parent)
    cases = {
        "delayed": job(delay=60 * SECOND),
        "blocked": job(after=f'["{parent.id}"]', waits=1),
        "ready": job(),
        "parked": job(limits=LIMITS),
    }
    await store.enqueue(list(cases.values()))
    for bad in cases.values():
        await spoil(store, bad.id, dead_retention="broken")
    found = [await store.inspect(2) for _ in range(6)]
    assert_equal(sum(found), len(cases), "an inspection finds what no other verb meets, a few rows at a time")
    for bad in cases.values():
        await set_aside(store, bad.id, "dead_retention")
    assert_equal((await read_job(store, parent.id)).state, State.SCHEDULED, "what can be read stays as it is")


async def case_once_is_enough(store: Storage, clock: MovableClock) -> None:
    bad = job()
    await plant(store, bad, payload="{", errors="broken")
    while await store.inspect(100):
        pass
    record = await set_aside(store, bad.id, "payload", "errors")
    assert_equal(
        (await store.inspect(100), await store.inspect(100)), (0, 0), "what was set aside can be read from then on"
    )
    assert_equal(await read_job(store, bad.id), record, "and stays as it is")


async def case_inspection_leaves_what_runs(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await plant(store, job(delay=60 * SECOND))
    await spoil(store, record.id, errors="broken")
    assert_equal(await store.inspect(100), 0, "a job that runs is left to its holder")
    clock.advance(120)
    assert_equal(await store.inspect(100), 1, "until its lease is over")
    await set_aside(store, record.id, "errors")


async def case_an_ended_job_keeps_its_end(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    await plant(store, job(delay=60 * SECOND))
    await apply_report(store, record, Succeeded("1"))
    await spoil(store, record.id, tags="broken")
    assert_equal(await store.inspect(100), 1, "an ended job is inspected too")
    found = await read_job(store, record.id)
    assert_equal((found.state, found.result), (State.SUCCEEDED, "1"), "an ended job that cannot be read keeps its end")
    assert_equal(unreadable_fields(found.reason), ("tags",), "and says what could not be read")


async def case_its_key_is_free(store: Storage, clock: MovableClock) -> None:
    bad = job(unique_key="k", unique_scope="active")
    await plant(store, bad, errors="broken")
    await claim(store, 10)
    await set_aside(store, bad.id, "errors")
    again = job(unique_key="k", unique_scope="active")
    assert_equal((await store.enqueue([again]))[0].duplicate, False, "a job that is set aside holds no key")


async def case_queue_settings(store: Storage, clock: MovableClock) -> None:
    await plant(store, job(delay=60 * SECOND))
    await store.configure(QueueSettings("q", fair=True, weights="broken"))
    new = job(queue="q", tenant="t")
    await store.enqueue([new])
    assert_equal(ids(await claim(store, 10)), [new.id], "a queue whose weights cannot be read continues without them")
    assert_equal([row.settings.name for row in await store.queues()], ["default", "q"], "and is listed")
