"""Ordinary jobs are claimed by a fast path, and policies are stored once."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from perdure.core.backoff import Backoff
from perdure.core.lifecycle import Snoozed, decide
from perdure.storage.sqlite.upkeep import upkeep

from .helpers import claim, job, store_at

pytestmark = pytest.mark.usefixtures("both_paths")


async def claimed_as_on_record(store, limit, **options):
    """What a claim told, after a look whether it is what stands on record."""
    claimed = (await store.exchange((), claim(limit, **options))).claimed
    assert claimed == await store.get([record.id for record in claimed])
    return [record.id for record in claimed]


@pytest.mark.parametrize("limits", [None, '[["k",1000]]'])
async def test_jobs_like_all_others_and_jobs_like_none_are_claimed_in_their_order(tmp_path, limits):
    async with store_at(tmp_path / "jobs.db") as store:
        usual = [{"payload": f'{{"n":{number}}}'} for number in range(40)]
        odd = [
            {"tenant": "acme"},
            {"backoff": Backoff.fixed(7).text()},
            {"max_attempts": None},
            {"tags": '["a","b"]', "meta": '{"a":"b"}'},
            {"lease": 17_000_000},
            {"chain_id": "c", "payload": '"\\u001e ä"'},
        ]
        jobs = [job(limits=limits, **fields) for fields in (*usual[:10], *odd[:3], *usual[10:], *odd[3:])]
        jobs.append(urgent := job(limits=limits, priority=5))
        await store.enqueue(jobs)
        options = {"limited": True} if limits else {}
        told = [await claimed_as_on_record(store, 15, **options) for _ in range(5)]
        assert [id for part in told for id in part] == [urgent.id, *(each.id for each in jobs[:-1])]
        assert [len(part) for part in told] == [15, 15, 15, 2, 0]


async def test_a_job_that_was_tried_before_is_not_ordinary(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        first, second = job(), job()
        await store.enqueue([first, second])
        (held,) = (await store.exchange((), claim(1))).claimed
        await store.apply([decide(held, Snoozed(0, None, "later", None))])
        assert await claimed_as_on_record(store, 5) == [second.id, first.id]


async def claimed_after(path, statement):
    """What a claim tells of three jobs, after somebody has changed the second by hand; with their ids as they were."""
    async with store_at(path) as store:
        jobs = [job() for _ in range(3)]
        await store.enqueue(jobs)
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute(statement, (jobs[1].id,))
        return await claimed_as_on_record(store, 5), [each.id for each in jobs]


async def test_a_payload_that_was_written_by_hand_hides_no_other(tmp_path):
    written = (
        "update perdure_bodies set payload = '\"' || char(30) || '\"' "
        "where number = (select number from perdure_jobs where id = ?)"
    )
    claimed, ids = await claimed_after(tmp_path / "jobs.db", written)
    assert claimed == ids


async def test_an_id_that_was_written_by_hand_is_told_as_it_is(tmp_path):
    claimed, ids = await claimed_after(tmp_path / "jobs.db", "update perdure_jobs set id = 'short' where id = ?")
    assert sorted(claimed) == sorted([ids[0], "short", ids[2]])


def policies(path):
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute("select count(*) from perdure_policies").fetchone()[0]


async def test_a_policy_is_kept_once_and_as_long_as_a_job_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(upkeep, "MANY_POLICIES", 5)
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        jobs = [job(max_attempts=number % 8 + 1) for number in range(32)]
        await store.enqueue(jobs)
        assert policies(path) == 8
        kept = [each for each in jobs if each.max_attempts == 3]
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.executemany("delete from perdure_jobs where id = ?", [(each.id,) for each in jobs if each not in kept])
        await store.prune(100)
        assert policies(path) == 1
        assert [record.max_attempts for record in await store.get([each.id for each in kept])] == [3] * 4


async def test_a_policy_that_came_in_a_callers_transaction_is_gone_with_it(tmp_path):
    path = tmp_path / "jobs.db"
    async with store_at(path) as store:
        new = msgspec.structs.replace(job(), max_attempts=17)
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            for end, left in (("rollback", 0), ("commit", 1)):
                raw.execute("begin immediate")
                for statement, text in store.caller_statements([new]).inserts:
                    raw.execute(statement, (text,))
                raw.execute(end)
                assert policies(path) == left
        assert await claimed_as_on_record(store, 5) == [new.id]


async def test_a_claim_follows_pauses_and_the_queues_that_it_names(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        jobs = [job(queue="mail") for _ in range(4)]
        await store.enqueue(jobs)
        assert await claimed_as_on_record(store, 1) == [jobs[0].id]
        assert await claimed_as_on_record(store, 1) == [jobs[1].id]
        await store.pause("mail", True)
        assert await claimed_as_on_record(store, 5) == []
        await store.pause("mail", False)
        await store.enqueue([other := job(queue="news", priority=3)])
        assert await claimed_as_on_record(store, 2) == [other.id, jobs[2].id]
        assert await claimed_as_on_record(store, 5, queues=frozenset({"news"})) == []
        assert await claimed_as_on_record(store, 5, queues=frozenset({"mail"})) == [jobs[3].id]


async def test_a_second_want_takes_nothing_that_the_first_has_taken(tmp_path):
    async with store_at(tmp_path / "jobs.db") as store:
        jobs = [job() for _ in range(7)]
        await store.enqueue(jobs)
        assert await claimed_as_on_record(store, 1) == [jobs[0].id]
        once = claim(2)
        claimed = (await store.exchange((), msgspec.structs.replace(once, wants=once.wants * 2))).claimed
        assert [record.id for record in claimed] == [each.id for each in jobs[1:5]]
        assert await claimed_as_on_record(store, 5) == [each.id for each in jobs[5:]]
