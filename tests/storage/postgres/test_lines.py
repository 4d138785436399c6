"""A store with very many queues is claimed from along lines: claimers do not meet there, and paused queues cost little."""

from __future__ import annotations

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
