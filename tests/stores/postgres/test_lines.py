"""A store with very many queues is claimed from along lines: claimers do not meet there, and paused queues cost little."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from perdure.testing.conformance.tools import claim, ids

from .helpers import job, opened, schema_of


@pytest.fixture
def many():
    return [job(queue=f"q{number}", priority=number % 5) for number in range(300)]


def best(jobs):
    return ids(sorted(jobs, key=lambda new: (-new.priority, new.id)))


async def test_jobs_that_another_claimer_has_locked_are_passed_by(own_url, many):
    async with opened(own_url) as store:
        await store.enqueue(many)
        with psycopg.connect(own_url.partition("?")[0]) as other:
            locked = best(many)[:10]
            other.execute(f"SELECT FROM {schema_of(own_url)}.waiting WHERE id = ANY(%s::uuid[]) FOR UPDATE", [locked])
            assert sorted(ids(await claim(store, 10))) == sorted(best(many)[10:20])
            other.rollback()
        assert ids(await claim(store, 10)) == locked


async def test_a_deep_paused_queue_is_not_walked_through(own_url, many):
    async with opened(own_url) as store:
        await store.enqueue([job(queue="paused", priority=9) for _ in range(500)])
        await store.enqueue([job(queue="paused", priority=9) for _ in range(501)])
        await store.enqueue(many)
        await store.pause("paused", True)
        assert ids(await claim(store, 20)) == best(many)[:20]


@pytest.fixture
def paused():
    return [job(queue=f"paused {number}", priority=9) for number in range(300)]


async def pause_all(store, jobs):
    for new in jobs:
        await store.pause(new.queue, True)


def in_lines(url):
    """How many jobs a claim along lines can read."""
    with psycopg.connect(url.partition("?")[0]) as raw:
        ready = f"SELECT count(*) FROM {schema_of(url)}.waiting WHERE state = 'ready' AND in_paused_queue IS NOT TRUE"
        return raw.execute(ready).fetchone()[0]


async def test_a_claim_reads_the_jobs_of_paused_queues_once(own_url, paused):
    async with opened(own_url) as store:
        await store.enqueue(paused)
        await store.enqueue([job(queue="served") for _ in range(20)])
        await pause_all(store, paused)
        assert [record.queue for record in await claim(store, 2)] == ["served"] * 2
        assert in_lines(own_url) == 18
        await store.enqueue([job(queue="paused 7", priority=9)])
        assert [record.queue for record in await claim(store, 2)] == ["served"] * 2
        assert in_lines(own_url) == 16
        await store.pause("paused 7", False)
        assert sorted(record.queue for record in await claim(store, 3)) == ["paused 7", "paused 7", "served"]


async def test_who_resumes_a_queue_waits_for_a_claim_that_marks_its_jobs(own_url, paused):
    async with opened(own_url) as store:
        await store.enqueue(paused)
        await pause_all(store, paused)
        schema = schema_of(own_url)
        with psycopg.connect(own_url.partition("?")[0]) as other:
            assert other.execute(f"SELECT {schema}.mark_paused_jobs(true, 20000)").fetchone() == (False,)
            resuming = asyncio.ensure_future(store.pause("paused 7", False))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
            with psycopg.connect(own_url.partition("?")[0], autocommit=True) as observer:
                async with asyncio.timeout(10):
                    while not observer.execute(waits, [f'%INSERT INTO "{schema}".queues%']).fetchone()[0]:
                        assert not resuming.done()
                        await asyncio.sleep(0.01)
            other.commit()
        await resuming
        assert [record.queue for record in await claim(store, 2)] == ["paused 7"]


async def test_a_job_held_up_by_no_pause_is_let_on(own_url, paused):
    async with opened(own_url) as store:
        await store.enqueue(paused)
        await pause_all(store, paused)
        assert await claim(store, 2) == []
        with psycopg.connect(own_url.partition("?")[0]) as raw:
            raw.execute(f"UPDATE {schema_of(own_url)}.queues SET paused = false WHERE name = 'paused 5'")
        await store.prune(100)
        assert [record.queue for record in await claim(store, 2)] == ["paused 5"]


async def test_the_best_jobs_of_a_lane_are_read_from_the_index_of_lanes(own_url, many):
    """That of lines holds the jobs of all queues, and would be read from end to end."""
    async with opened(own_url) as store:
        await store.enqueue(many)
        with psycopg.connect(own_url.partition("?")[0]) as raw:
            ready = "state = 'ready' AND NOT parked AND NOT suspect"
            ours = "hashtextextended(queue, 0) = hashtextextended('q7', 0) AND queue = 'q7'"
            query = f"EXPLAIN SELECT id FROM {schema_of(own_url)}.waiting WHERE {ready} AND {ours} LIMIT 1"
            raw.execute("SET enable_seqscan = off")
            plan = " ".join(line for (line,) in raw.execute(query))
        assert "waiting_ready" in plan
        assert "waiting_line" not in plan
