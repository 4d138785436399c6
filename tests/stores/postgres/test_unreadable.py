"""One row that holds what no version of Perdure writes hides no other, and stops no reader."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

from perdure.core.ids import new_stamp
from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.contract import Claim, Filter, JobDump, Want
from tests.support.real_servers import server

from .helpers import job, opened, schema_of

LONG_ENOUGH = 3600 * 1_000_000


async def spoil(store, id, **flaws):
    (carried,) = [each for each in await store.export(None, 100) if each.record.id == id]
    await store.restore([JobDump(msgspec.structs.replace(carried.record, **flaws))])


def change(url, statement, *values):
    """Run a statement behind the store's back."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as raw:
        raw.execute(statement.format(schema_of(url)), values)
    raw.close()


async def claimed(store, limit=10):
    answer = await store.exchange((), Claim("w", new_stamp(), (Want(limit, queues=("default",)),)))
    return {record.id for record in answer.claimed}


async def test_listings_mark_it_and_show_the_others():
    url = server("postgres").fresh()
    async with opened(url) as store:
        jobs = [job() for _ in range(3)]
        await store.enqueue(jobs)
        await spoil(store, jobs[0].id, errors="broken")
        change(url, "UPDATE {}.waiting SET state = 'strange' WHERE id = %s", jobs[1].id)
        wanted = {jobs[0].id: "unreadable: errors", jobs[1].id: "unreadable: state", jobs[2].id: None}
        found, _ = await store.find(Filter(), 10, None)
        assert {record.id: record.reason for record in found} == wanted
        assert [record.reason for record in await store.get([each.id for each in jobs])] == [*wanted.values()]


async def test_the_reaper_and_expiry_pass_over_it():
    async with opened(server("postgres").fresh()) as store:
        bad, good = job(lease=1), job(lease=1)
        late, soon = job(queue="late", expires=1), job(queue="late", expires=1)
        await store.enqueue([bad, good, late, soon])
        await store.exchange((), Claim("w", new_stamp(), (Want(2, queues=("default",)),)))
        await spoil(store, bad.id, retention="broken")
        await spoil(store, late.id, retention="broken")
        assert [record.id for record in await store.lapsed(10, LONG_ENOUGH)] == [good.id]
        assert [record.id for record in await store.expired(10)] == [soon.id]


async def test_a_full_counter_does_not_make_the_claim_fail():
    url = server("postgres").fresh()
    async with opened(url) as store:
        jobs = [job() for _ in range(3)]
        await store.enqueue(jobs)
        change(url, "UPDATE {}.waiting SET version = 2147483647 WHERE id = %s", jobs[1].id)
        assert await claimed(store) == {jobs[0].id, jobs[2].id}
        assert [(row.id, row.fields) for row in await store.unreadable()] == [(jobs[1].id, ("version",))]


async def test_a_job_that_neither_waits_nor_runs_nor_has_ended():
    url = server("postgres").fresh()
    async with opened(url) as store:
        lost, other = job(), job()
        follower = job(after=f'["{lost.id}"]', waits=1, run_when="finished")
        await store.enqueue([lost, other])
        change(url, "DELETE FROM {}.waiting WHERE id = %s", lost.id)
        await store.enqueue([follower])  # which looks for how its parent stands
        await store.resolve_edges(100)
        (record,) = await store.get([lost.id])
        assert (record.state, record.reason) == (State.DEAD, "unreadable: state, rank, run_at, suspect")
        assert await claimed(store) == {other.id, follower.id}


async def test_a_moving_row_without_a_job_is_kept_and_removed():
    url = server("postgres").fresh()
    async with opened(url) as store:
        stray, other = job(), job()
        await store.enqueue([stray, other])
        change(url, "DELETE FROM {}.jobs WHERE id = %s", stray.id)
        assert await store.inspect(100) == 1
        assert [(row.id, row.where) for row in await store.unreadable()] == [(stray.id, "waiting")]
        assert await claimed(store) == {other.id}


async def test_a_job_in_a_lane_of_others_comes_back():
    url = server("postgres").fresh()
    async with opened(url) as store:
        jobs = [job(), job(), job()]
        await store.enqueue(jobs)
        change(url, "UPDATE {}.waiting SET queue = 'elsewhere' WHERE id = %s", jobs[0].id)
        change(url, "UPDATE {}.waiting SET parked = true WHERE id = %s", jobs[1].id)
        assert await claimed(store) == {jobs[2].id}
        assert await store.inspect(100) == 2
        assert await claimed(store) == {jobs[0].id, jobs[1].id}
        assert await store.unreadable() == []


async def test_a_search_for_tags_passes_over_what_is_no_list():
    url = server("postgres").fresh()
    async with opened(url) as store:
        jobs = [job(tags='["a"]'), job(tags='["a","b"]'), job(tags='["c"]'), job(tags='["a"]')]
        await store.enqueue(jobs)
        change(url, "UPDATE {}.jobs SET tags = '[1,' WHERE id = %s", jobs[0].id)
        change(url, "UPDATE {}.jobs SET tags = '5' WHERE id = %s", jobs[3].id)
        found, _ = await store.find(Filter(tag="a"), 10, None)
        assert [record.id for record in found] == [jobs[1].id]


async def test_what_was_kept_goes_with_its_job():
    url = server("postgres").fresh()
    async with opened(url) as store:
        bad = job()
        await store.enqueue([bad])
        await spoil(store, bad.id, errors="broken")
        assert await claimed(store) == set()
        assert len(await store.unreadable()) == 1
        change(url, "UPDATE {}.outcomes SET prune_at = 1, finished_at = 0, hidden = true WHERE id = %s", bad.id)
        await store.prune(100)
        assert await store.get([bad.id]) == [None]
        assert await store.unreadable() == []


async def test_a_counter_that_fills_up_while_the_job_runs():
    url = server("postgres").fresh()
    async with opened(url) as store:
        jobs = [job(), job()]
        await store.enqueue(jobs)
        answer = await store.exchange((), Claim("w", new_stamp(), (Want(2, queues=("default",)),)))
        change(url, "UPDATE {}.holds SET version = 2147483647 WHERE id = %s", jobs[0].id)
        said = await store.exchange([decide(record, Succeeded("1")) for record in answer.claimed])
        assert sorted(verdict.accepted for verdict in said.verdicts) == [False, True]
        states = [record.state for record in await store.get([each.id for each in jobs])]
        assert states == [State.DEAD, State.SUCCEEDED]


async def test_a_job_that_waits_although_it_has_ended():
    url = server("postgres").fresh()
    async with opened(url) as store:
        ended, other = job(), job()
        await store.enqueue([ended])
        answer = await store.exchange((), Claim("w", new_stamp(), (Want(1),)))
        await store.exchange([decide(record, Succeeded("1")) for record in answer.claimed])
        await store.enqueue([other])
        change(url, "UPDATE {0}.waiting SET id = %s", ended.id)
        while await store.inspect(100):
            pass
        states = [record.state for record in await store.get([ended.id, other.id])]
        assert states == [State.SUCCEEDED, State.DEAD]
        assert await claimed(store) == set()


async def test_the_longest_lease_does_not_stop_the_reaper():
    url = server("postgres").fresh()
    async with opened(url) as store:
        jobs = [job(lease=1), job()]
        await store.enqueue(jobs)
        assert len(await claimed(store)) == 2
        change(url, "UPDATE {}.holds SET lease = 9223372036854775807 WHERE id = %s", jobs[1].id)
        assert [record.id for record in await store.lapsed(10, LONG_ENOUGH)] == [jobs[0].id]


SILENT = {
    "no moving row": ("DELETE FROM {}.waiting WHERE id = %s", {}, State.DEAD),
    "an unknown state": ("UPDATE {}.waiting SET state = 'strange' WHERE id = %s", {}, State.DEAD),
    "parked at no gate": ("UPDATE {}.waiting SET parked = true WHERE id = %s", {}, State.READY),
    "never due": ("UPDATE {}.waiting SET run_at = NULL WHERE id = %s", {"delay": 3_000_000_000}, State.SCHEDULED),
}


@pytest.mark.parametrize("damage", SILENT)
async def test_one_inspection_finds_a_silent_row_behind_many(damage):
    """Nothing else meets it: the damaged value is the one that it is searched by."""
    statement, fields, becomes = SILENT[damage]
    url = server("postgres").fresh()
    async with opened(url) as store:
        await store.enqueue([job(queue="others") for _ in range(500)])
        bad = job(**fields)
        await store.enqueue([bad])
        change(url, statement, bad.id)
        assert await claimed(store) == set()
        assert await store.inspect(10) == 1
        assert (await store.get([bad.id]))[0].state is becomes
        if becomes is State.READY:
            assert await claimed(store) == {bad.id}
        if becomes is State.SCHEDULED:
            change(
                url,
                "UPDATE {}.waiting SET run_at = run_at - 4000000000, rank = rank - 4000000000 WHERE id = %s",
                bad.id,
            )
            await store.promote(10)
            assert await claimed(store) == {bad.id}
        assert await store.inspect(10) == 0
