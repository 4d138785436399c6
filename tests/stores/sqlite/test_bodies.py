"""A job in two rows: they belong together, and a row says where its job stands as its state does."""

import sqlite3
from contextlib import closing
from random import Random

import pytest

from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.sqlite.schema import load_migrations

from ..conformance.stores import STORES
from ..conformance.twin import failure_of, operations
from .helpers import claim, job, store_at

pytestmark = pytest.mark.usefixtures("both_paths")

UNSOUND = """
select job.id, state, in_lane, apart, parked, suspect from perdure_jobs as job
where in_lane is not case when state = 'ready' and parked = 0 and suspect = 0 then 1 end
    or apart is not case when state in ('scheduled', 'blocked', 'dead') then state
        when state = 'ready' and suspect = 1 then 'suspect' end
    or (parked = 1 and (state <> 'ready' or limits is null))
"""
ALONE = """
select number from perdure_jobs where number not in (select number from perdure_bodies)
union all select number from perdure_bodies where number not in (select number from perdure_jobs)
"""


def said(path, statement, *parameters):
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        return raw.execute(statement, parameters).fetchall()


def sound(path):
    return said(path, UNSOUND) == said(path, ALONE) == []


def numbered(many):
    return [job(payload=f"[{number}]") for number in range(many)]


async def payloads(store, jobs):
    return [record.payload for record in await store.get([each.id for each in jobs])]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_told_rows_say_where_their_jobs_stand(tmp_path, seed):
    assert failure_of(STORES["sqlite"], iter([tmp_path]), operations(Random(seed), 80)) is None
    (file,) = tmp_path.glob("**/*.db")
    assert said(file, "select count(*) > 5 from perdure_jobs") == [(1,)]
    assert sound(file)


async def test_bodies_stay_with_their_jobs_when_some_are_on_record(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        jobs = numbered(9)
        await store.enqueue(jobs[2:5])
        await store.enqueue(jobs)
        assert await payloads(store, jobs) == [each.payload for each in jobs]
        assert sound(path)


async def test_bodies_stay_with_their_jobs_when_numbers_have_come_apart(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        first, second = numbered(3), numbered(3)
        await store.enqueue(first)
        said(
            path,
            "insert into perdure_bodies values (50,'',1,1,'',0,null,null,null,null,null,null,null,null,null,null)",
        )
        await store.enqueue(second)
        assert await payloads(store, second) == [each.payload for each in second]
        claimed = (await store.exchange((), claim())).claimed
        assert [record.payload for record in claimed] == [each.payload for each in (*first, *second)]


async def test_a_body_goes_with_its_job(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        jobs = numbered(4)
        await store.enqueue(jobs)
        said(path, "delete from perdure_jobs where id = ?", jobs[-1].id)
        assert sound(path)
        await store.enqueue(more := numbered(2))
        assert await payloads(store, more) == [each.payload for each in more]
        assert sound(path)


async def test_a_job_whose_state_was_changed_by_hand_is_not_claimed(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        jobs = numbered(3)
        await store.enqueue(jobs)
        said(path, "update perdure_jobs set state = 'cancelled' where id = ?", jobs[1].id)
        claimed = (await store.exchange((), claim())).claimed
        assert [record.id for record in claimed] == [jobs[0].id, jobs[2].id]


async def test_jobs_whose_rows_are_not_neighbours_are_claimed_alone(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        jobs = [job(priority=number % 2) for number in range(6)]
        await store.enqueue(jobs)
        claimed = (await store.exchange((), claim(3))).claimed
        assert [record.id for record in claimed] == [each.id for each in jobs if each.priority]
        found = await store.get([each.id for each in jobs])
        assert [record.state for record in found] == [State.READY, State.RUNNING] * 3
        await store.apply([decide(record, Succeeded()) for record in claimed])
        assert sound(path)


async def test_a_key_of_scope_waiting_is_free_once_its_job_is_claimed(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        for scope, free in (("waiting", 0), ("active", 1)):
            await store.enqueue([keyed := job(unique_key=scope, unique_scope=scope)])
            assert [record.id for record in (await store.exchange((), claim())).claimed] == [keyed.id]
            assert said(path, "select holds_key from perdure_jobs where id = ?", keyed.id) == [(free,)]


async def test_a_file_of_the_second_version_is_migrated_in_place(tmp_path):
    path, old = tmp_path / "jobs.db", tmp_path / "old.db"
    async with store_at(path) as store:
        jobs = [
            *numbered(3), job(delay=60_000_000), job(limits='[["k",1]]'), job(key="k", tags='["a"]', tenant="t"),
            job(unique_key="u", unique_scope="active"), job(chain_id="c", meta='{"a":1}', expires=10**9),
        ]  # fmt: skip
        await store.enqueue(jobs)
        (held,) = (await store.exchange((), claim(1))).claimed
        await store.apply([decide(held, Succeeded())])
        await store.exchange((), claim(1))
        records = await store.get([each.id for each in jobs])
    columns = (
        "task, queue, state, priority, rank, payload, version, attempt, failures, losses, policy, lease, created_at"
    )
    columns += ", run_at, started_at, finished_at, expires_at, prune_at, keep_last, stamp, accepted_stamp"
    columns += ", leased_by, leased_until"
    columns += (
        ", suspect, parked, hidden, result, progress, errors, reason, key, tenant, routing_key, tags, meta, unique_key"
    )
    columns += (
        ", unique_scope, holds_key, chain_id, after, run_when, waits, limits, min_version, followed, next_id, releases"
    )
    with closing(sqlite3.connect(old)) as raw, raw:
        for step in load_migrations()[:2]:
            raw.executescript(step.text)
        raw.execute(
            "create table perdure_meta (name text not null primary key, value text not null) strict, without rowid"
        )
        raw.execute("insert into perdure_meta values ('schema', '2')")
        raw.execute("attach ? as new", (str(path),))
        raw.execute(
            f"insert into perdure_jobs (rowid, id, {columns}) select number, id, {columns} "
            "from new.perdure_jobs join new.perdure_bodies using (number)"
        )
        for table in ("perdure_policies", "perdure_gates"):
            raw.execute(f"insert into {table} select * from new.{table}")
    async with store_at(old) as store:
        assert await store.get([each.id for each in jobs]) == records
        assert sound(old)
        left = {
            each.id
            for each, record in zip(jobs, records, strict=True)
            if record.state is State.READY and not each.limits
        }
        assert {record.id for record in (await store.exchange((), claim(50))).claimed} == left
        assert [record.id for record in (await store.exchange((), claim(5, limited=True))).claimed] == [jobs[4].id]
