"""A job in two rows: they belong together, and a row says where its job stands as its state does."""

import sqlite3
from contextlib import closing
from random import Random

import pytest

from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide

from ..conformance.stores import STORES
from ..conformance.twin import failure_of, operations
from .helpers import claim, job, store_at

pytestmark = pytest.mark.usefixtures("both_paths")

UNSOUND = """
select job.id, state, in_lane, index_state, parked, suspect from perdure_jobs as job
where in_lane is not case when state = 'ready' and parked = 0 and suspect = 0 then 1 end
    or index_state is not case when state in ('scheduled', 'blocked', 'dead') then state
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
