"""enqueue: jobs are stored completely and in order, and an enqueue can be repeated safely."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.clock import SECOND
from perdure.core.ids import new_ids
from perdure.core.job import State
from perdure.core.lifecycle import Deleted, Succeeded
from perdure.core.record import ROW_VERSION, NewJob, Record, UniformJobs
from perdure.storage.contract import EnqueueResult, Storage

from ..tools import (
    FORGET,
    MovableClock,
    assert_equal,
    assert_unchanged,
    claim,
    enqueue_and_claim,
    ids,
    job,
    read_job,
    report,
)


async def case_every_field_is_stored(store: Storage, clock: MovableClock) -> None:
    new = NewJob(
        id="01900000-0000-7000-8000-000000000001",
        task="send",
        payload='{"to":"a"}',
        queue="mail",
        priority=-3,
        delay=5 * SECOND,
        expires=90 * SECOND,
        max_attempts=None,
        timeout=None,
        lease=7 * SECOND,
        backoff='["fixed",1000000,1.0,1000000,0]',
        retention='{"last":5}',
        dead_retention='"delete"',
        key="k",
        tenant="org/workspace",
        routing_key="vector",
        tags='["x", "y"]',
        meta='{"request": "1"}',
        unique_key="send|org/workspace|k",
        unique_scope="active",
        chain_id="01900000-0000-7000-8000-000000000002",
        after='["01900000-0000-7000-8000-000000000003"]',
        run_when="finished",
        waits=1,
        limits='[["tenant:org",2,null,null]]',
        min_version=ROW_VERSION,
    )
    now = await store.now()
    await store.enqueue([job(id="01900000-0000-7000-8000-000000000003")])
    assert_equal(await store.enqueue([new]), [EnqueueResult(new.id)], "enqueue answers with the job's own id")
    wanted = Record(
        id=new.id,
        task="send",
        queue="mail",
        state=State.BLOCKED,
        priority=-3,
        rank=now + 5 * SECOND,
        payload=new.payload,
        version=(await read_job(store, new.id)).version,
        attempt=0,
        failures=0,
        losses=0,
        max_attempts=None,
        timeout=None,
        lease=7 * SECOND,
        backoff=new.backoff,
        retention=new.retention,
        dead_retention=new.dead_retention,
        created_at=now,
        run_at=now + 5 * SECOND,
        expires_at=now + 90 * SECOND,
        key="k",
        tenant="org/workspace",
        routing_key="vector",
        tags=new.tags,
        meta=new.meta,
        unique_key=new.unique_key,
        unique_scope="active",
        holds_key=True,
        chain_id=new.chain_id,
        after=new.after,
        run_when="finished",
        waits=1,
        limits=new.limits,
        min_version=ROW_VERSION,
    )
    assert_unchanged(
        wanted, await read_job(store, new.id), "a new row has the fields of the job, and the others empty; get"
    )


async def case_optional_fields_stay_empty(store: Storage, clock: MovableClock) -> None:
    new = job()
    await store.enqueue([new])
    record = await read_job(store, new.id)
    for field in (
        "key",
        "tenant",
        "routing_key",
        "tags",
        "meta",
        "chain_id",
        "after",
        "limits",
        "expires_at",
        "result",
    ):
        assert_equal(getattr(record, field), None, f"{field} was not set: it is None")
    assert_equal(
        (record.holds_key, record.hidden, record.parked, record.suspect), (False,) * 4, "marks are off at first"
    )


async def case_ready_when_its_time_has_come(store: Storage, clock: MovableClock) -> None:
    now = await store.now()
    jobs = [job(), job(delay=1), job(at=now), job(at=now + 1), job(at=now - 5), job(delay=9, at=now - 9)]
    await store.enqueue(jobs)
    rows = [await read_job(store, new.id) for new in jobs]
    states = [State.READY, State.SCHEDULED, State.READY, State.SCHEDULED, State.READY, State.READY]
    assert_equal([row.state for row in rows], states, "scheduled if run_at > now, else ready")
    run_at = [now, now + 1, now, now + 1, now - 5, now - 9]
    assert_equal([row.run_at for row in rows], run_at, "run_at is `at`, or now + delay")
    assert_equal([row.rank for row in rows], run_at, "rank = run_at")


async def case_blocked_while_it_waits_for_parents(store: Storage, clock: MovableClock) -> None:
    jobs = [job(waits=1), job(waits=2, delay=SECOND)]
    await store.enqueue(jobs)
    for new in jobs:
        row = await read_job(store, new.id)
        assert_equal((row.state, row.waits), (State.BLOCKED, new.waits), "a job with parents not yet ended is blocked")
    clock.advance(10)
    assert_equal(await claim(store, 5), [], "blocked jobs are not claimed, however late it is")


async def case_answers_in_list_order(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(20)]
    shuffled = jobs[10:] + jobs[:10]
    assert_equal(ids(await store.enqueue(shuffled)), ids(shuffled), "results are in the order of the jobs")


async def case_a_whole_chunk(store: Storage, clock: MovableClock) -> None:
    jobs = [job() for _ in range(store.chunk)]
    assert_equal(len(await store.enqueue(jobs)), store.chunk, "a call takes `chunk` jobs")
    assert_equal(ids(await claim(store, store.chunk)), ids(jobs), "a batch keeps its list order")


async def case_nothing_to_enqueue(store: Storage, clock: MovableClock) -> None:
    assert_equal(await store.enqueue([]), [], "an empty list is answered by an empty list")


async def case_repeated_while_waiting(store: Storage, clock: MovableClock) -> None:
    new = job(payload='{"n":1}')
    await store.enqueue([new])
    before = await read_job(store, new.id)
    clock.advance(5)
    assert_equal(
        await store.enqueue([new]), [EnqueueResult(new.id)], "an id on record is this very job, and no duplicate"
    )
    assert_unchanged(before, await read_job(store, new.id), "a repeated enqueue")
    assert_equal(len(await claim(store, 5)), 1, "a repeated enqueue stores nothing twice")


async def case_repeated_while_running_or_ended(store: Storage, clock: MovableClock) -> None:
    new = job()
    await store.enqueue([new])
    before = (await claim(store))[0]
    assert_equal(await store.enqueue([new]), [EnqueueResult(new.id)], "the repeat of a running job")
    assert_unchanged(before, await read_job(store, new.id), "a repeated enqueue of a running job")
    ended = await report(store, new.id, Succeeded("1"))
    assert_equal(await store.enqueue([new]), [EnqueueResult(new.id)], "the repeat of an ended job")
    assert_unchanged(ended, await read_job(store, new.id), "a repeated enqueue of an ended job")
    assert_equal(await claim(store), [], "an ended job is not run again by a repeated enqueue")


async def case_repeated_after_delete_on_success(store: Storage, clock: MovableClock) -> None:
    new = job(retention=FORGET)
    await store.enqueue([new])
    record = (await claim(store))[0]
    await report(store, record.id, Succeeded())
    clock.advance(60)
    assert_equal(await store.enqueue([new]), [EnqueueResult(new.id)], "a hidden row is found by a repeated enqueue")
    assert_equal(await claim(store), [], "a job deleted on success must not run again by a repeated enqueue")


async def case_repeated_after_deletion(store: Storage, clock: MovableClock) -> None:
    new = job()
    await store.enqueue([new])
    await report(store, new.id, Deleted())
    assert_equal(await store.enqueue([new]), [EnqueueResult(new.id)], "a deleted row is found by a repeated enqueue")
    assert_equal(await claim(store), [], "a deleted job does not come back by a repeated enqueue")


async def case_repeated_in_part(store: Storage, clock: MovableClock) -> None:
    old, new = job(), job()
    await store.enqueue([old])
    assert_equal(
        await store.enqueue([old, new, new]),
        [EnqueueResult(old.id), EnqueueResult(new.id), EnqueueResult(new.id)],
        "known ids in a list",
    )
    assert_equal(ids(await claim(store, 5)), [old.id, new.id], "each id is stored once")


async def case_records_are_copies(store: Storage, clock: MovableClock) -> None:
    record = await enqueue_and_claim(store)
    before = await read_job(store, record.id)
    record.state, record.stamp, record.payload = State.DEAD, 0, "changed"
    assert_unchanged(before, await read_job(store, record.id), "changing a record that was handed out")


async def case_jobs_of_one_kind_may_come_as_ids_and_payloads(store: Storage, clock: MovableClock) -> None:
    """A list of jobs that share a template is stored like the jobs themselves."""
    kinds: list[dict[str, Any]] = [
        {},
        {"delay": 5 * SECOND},
        {"priority": 7, "max_attempts": None, "lease": 9 * SECOND, "retention": '"delete"'},
        {"limits": '[["k",2]]'},
        {"tenant": "acme", "tags": '["a"]', "routing_key": "r"},
        {"unique_key": "task||k", "unique_scope": "active"},
    ]
    for number, fields in enumerate(kinds):
        template = job(id="", payload="", queue=f"q{number}", **fields)
        payloads = ['"a"', '{"b":[1,2]}', '"\\u001e\\"\\n ä €"']
        alike = UniformJobs(template, new_ids(3), payloads)
        stored = await store.enqueue(alike)
        listed = [msgspec.structs.replace(each, id=id) for each, id in zip(alike, new_ids(3), strict=True)]
        other = [msgspec.structs.replace(each, queue=f"other{number}") for each in listed]
        if template.unique_key is not None:
            assert_equal(
                stored,
                [EnqueueResult(alike.ids[0]), *[EnqueueResult(alike.ids[0], duplicate=True)] * 2],
                "their key is one",
            )
            continue
        assert_equal(stored, [EnqueueResult(id) for id in alike.ids], "each job is stored by itself")
        await store.enqueue(other)
        for ours, theirs in zip(alike.ids, other, strict=True):
            like = await read_job(store, theirs.id)
            instants = {"created_at": like.created_at, "run_at": like.run_at, "rank": like.rank}
            expected = msgspec.structs.replace(
                await read_job(store, ours), id=theirs.id, queue=theirs.queue, **instants
            )
            assert_equal(expected, like, f"a job of the kind {fields} is stored as one of a list is")
        assert_equal(await store.enqueue(alike), stored, "enqueued again, they are the same jobs")
