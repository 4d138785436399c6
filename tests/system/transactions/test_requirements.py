"""Named demands of systems that keep their jobs in their own database, each as a test."""

import asyncio

import psycopg
import pytest

from perdure import Backoff, Perdure, Retention, State, Unique
from tests.support.real_servers import server

from .tools import schema_of


async def test_d_10_a_conversation_and_its_job_in_one_transaction(app, dsn):
    """D-10: business insert and job insert; priority 1, key `sanitize-<conversationId>`, scheduled now."""

    @app.task
    async def sanitize(conversation: int) -> int:
        return conversation

    async with app:
        await app.jobs.count()
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            table = f'"{schema_of(app)}".conversations'
            await connection.execute(f"create table {table} (id integer primary key)".encode())
            await connection.commit()

            async def converse(conversation):
                await connection.execute(f"insert into {table} values (%s)".encode(), (conversation,))
                return await sanitize.using(connection=connection, priority=1, key=f"sanitize-{conversation}").enqueue(
                    conversation
                )

            job = await converse(7)
            await connection.commit()
            with pytest.raises(psycopg.errors.UniqueViolation):
                await converse(7)
            await connection.rollback()
            undone = await converse(8)
            await connection.rollback()
        assert await app.jobs.get(undone.id) is None
        seen = await job.refresh()
        assert (seen.state, seen.priority, seen.key) == (State.READY, 1, "sanitize-7")
        assert await app.jobs.count() == 1
        async with app.worker():
            assert await job.result(timeout=10) == 7


async def test_c_04_a_singleton_exists_at_most_once(app, dsn):
    """C-04: a task with a name exists at most once; creating it again is a silent no-op."""

    @app.task
    async def index_retry() -> None: ...

    once = index_retry.using(unique=Unique("vector_store_index_retry", scope="active"))
    async with app:
        await app.jobs.count()

        async def replica():
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                handles = [await once.using(connection=connection).enqueue() for _ in range(3)]
                await connection.commit()
                return handles

        created = [handle for handles in await asyncio.gather(*(replica() for _ in range(5))) for handle in handles]
        assert len({handle.id for handle in created}) == 1
        assert sum(not handle.duplicate for handle in created) == 1
        assert await app.jobs.count() == 1


async def test_c_07_success_deletes_the_row_and_failure_comes_back_later(kind, dsn):
    """C-01, C-07: failed tasks stay with their error, are eligible again after a delay; success removes the row."""
    app = Perdure(server(kind).fresh())
    broken = True

    @app.task(retention=Retention.delete(), backoff=Backoff.fixed(0.2))
    async def vector_store_delete(group: str) -> None:
        if broken:
            raise ConnectionError("the vector store is away")

    async with app:
        await app.jobs.count()
        with psycopg.connect(dsn) as connection:
            job = await vector_store_delete.using(connection=connection).enqueue("g1")
        async with app.worker():
            async with asyncio.timeout(10):
                while not (seen := await job.refresh()).errors:
                    await asyncio.sleep(0.02)
            assert seen.state in (State.SCHEDULED, State.READY, State.RUNNING)
            assert "the vector store is away" in seen.errors[0].message
            broken = False
            await job.result(timeout=10)
        assert await app.jobs.count() == 0


async def test_c_08_several_replicas_share_the_work(app, dsn):
    """C-01, C-08: several replicas at once; each job is done once."""
    done: list[int] = []

    @app.task
    async def work(n: int) -> None:
        done.append(n)

    async with app:
        await app.jobs.count()
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            jobs = await app.enqueue([work.call(n) for n in range(300)], connection=connection)
            await connection.commit()
        async with app.worker(), app.worker(), app.worker():
            for job in jobs:
                await job.result(timeout=20)
    assert sorted(done) == list(range(300))
