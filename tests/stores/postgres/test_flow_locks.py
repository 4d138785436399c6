"""A parent that ends at the very moment at which another session looks at it for its child."""

import asyncio
import json

import psycopg
import pytest

from perdure.core.job import State
from perdure.core.lifecycle import Succeeded, decide
from perdure.storage.postgres.edges.edges import Edges
from perdure.testing.conformance.tools import enqueue_and_claim, job
from tests.support.real_servers import kinds_with_a_store, server

from .helpers import opened, schema_of


@pytest.fixture(params=[kind for kind in kinds_with_a_store() if kind.startswith("postgres")])
def url(request):
    return server(request.param).fresh()


async def test_a_parent_cannot_end_while_it_is_marked_as_followed(url, monkeypatch):
    """One session has seen that the parent runs, and is about to mark it as followed. Another session ends the parent. If
    the parent could end without the mark, nobody would look at its child again."""
    mark_followed = Edges._mark_followed
    async with opened(url) as one, opened(url) as other:
        parent = await enqueue_and_claim(one)
        child = job(after=json.dumps([parent.id]), waits=1)
        ending = []

        async def end_the_parent_first(self, connection, parents):
            if not ending:
                ending.append(asyncio.create_task(other.apply([decide(parent, Succeeded())])))
                await _until_it_ends_or_waits(ending[0], url)
            await mark_followed(self, connection, parents)

        monkeypatch.setattr(Edges, "_mark_followed", end_the_parent_first)
        await one.enqueue([child])
        await _settle_all(one)
        (verdict,) = await asyncio.wait_for(ending[0], 30)
        assert verdict.accepted
        await _settle_all(one)
        assert [row.state for row in await one.get([parent.id, child.id])] == [State.SUCCEEDED, State.READY]


async def _until_it_ends_or_waits(task, url):
    """Until a task has ended, or a session that uses the holds of this schema waits for a lock."""
    waiting = """
        select 1 from pg_locks as wanted join pg_locks as used on used.pid = wanted.pid
        where not wanted.granted and used.relation = (%s || '.holds')::regclass"""
    async with asyncio.timeout(30):
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            while not task.done() and not connection.execute(waiting, (schema_of(url),)).fetchall():
                await asyncio.sleep(0.01)


async def _settle_all(store):
    while await store.resolve_edges(500):
        pass
